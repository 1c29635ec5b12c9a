"""Real supervisors move jobs to the archive. A killed supervisor loses no job, and archives no job twice."""

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.models import ArchivedJob, Job

from ...app.waiting import wait_until
from ...harness.partitions import drop_partitions, partitions
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER_OF_JOBS = 40_000
"""More jobs than a supervisor archives until it is killed."""

INSERT_FINISHED_JOBS = """
INSERT INTO skipqueue_job (task, queue_name, args, kwargs, status, finished_at)
SELECT 't', 'default', '[]', '{}', 'completed', now() - interval '40 days' FROM generate_series(1, %s)
"""


@pytest.fixture(autouse=True)
def drop_partitions_after_the_test() -> Iterator[None]:
    yield
    drop_partitions()


def test_a_supervisor_that_is_killed_while_it_archives_leaves_each_job_in_one_table(
    runworker: Callable[..., ManagePy],
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT_FINISHED_JOBS, [NUMBER_OF_JOBS])
    all_ids = set(Job.objects.values_list("pk", flat=True))
    with_archive: dict[str, Any] = {"ARCHIVE": timedelta(days=365)}
    killed_supervisor = runworker(settings=f"import datetime\nSKIPQUEUE = {with_archive!r}")
    wait_until(ArchivedJob.objects.exists, "a batch is archived")
    killed_supervisor.send_to_group(signal.SIGKILL)
    killed_supervisor.wait()
    archived, not_archived = (set(model.objects.values_list("pk", flat=True)) for model in (ArchivedJob, Job))
    assert archived | not_archived == all_ids
    assert not archived & not_archived
    assert not_archived, "the supervisor was killed before it had archived all jobs"
    runworker(settings=f"import datetime\nSKIPQUEUE = {with_archive!r}")
    wait_until(lambda: not Job.objects.exists(), "all are archived")
    assert ArchivedJob.objects.count() == NUMBER_OF_JOBS
    assert len(partitions()) == 4, "one partition for the jobs, and three for this month and the next two months"
