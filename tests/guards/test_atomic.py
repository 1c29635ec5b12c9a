"""If PostgreSQL refuses the outcome of an atomic task, the rows that the task wrote are rolled back."""

from collections.abc import Iterator

import pytest
from django.db import connection

from django_skipqueue.models import Job
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ..app.models import Ledger
from ..app.rows import settle_and_claim
from ..app.worker_jobs import atomic_write

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def no_job_can_complete() -> Iterator[None]:
    """Add a constraint to the job table that no completed job satisfies, as a project might."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_job ADD CONSTRAINT of_the_project CHECK (status <> 'completed')")
        yield
        cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT of_the_project")


@pytest.mark.usefixtures("no_job_can_complete")
def test_an_outcome_that_is_refused_rolls_back_what_the_task_wrote() -> None:
    atomic_write.using(max_attempts=1).defer("once")
    _, [claimed_job] = settle_and_claim([], queue_names=["default"], limit=1, worker_id="w")
    attempt = Executor(worker="w", database="default").execute(RunningAttempt(claimed_job))
    assert (attempt.is_written, attempt.outcome.status) == (False, "failed")
    assert Job.objects.running().exists()
    assert not Ledger.objects.exists()
