"""The archive keeps the progress and the log of a job."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.models import ArchivedJob, Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.notes import logs_of

from ...app.rows import make_job
from ...harness.partitions import make_partitions

pytestmark = pytest.mark.django_db


def test_an_archived_job_keeps_its_progress() -> None:
    job = make_job("completed", lease=2, progress={"lease": 1, "value": 0.5, "text": "half"}, logs=[])
    columns = [field.attname for field in ArchivedJob._meta.fields if field.attname != "records"]
    archived = ArchivedJob(**{column: getattr(job, column) for column in columns})
    assert archived.current_progress == job.current_progress != None  # noqa: E711


def test_pruned_jobs_take_their_logs_to_the_archive(settings: Any) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}
    make_partitions()
    log = {"lease": 1, "attempt": 1, "worker": "w", "dropped": 0, "lines": [[5, "INFO", "", "kept"]]}
    job = make_job("completed", logs=[log], progress={"lease": 1, "value": 0.5, "text": "half"})
    Job.objects.filter(pk=job.pk).update(finished_at=Now() - timedelta(days=10))
    Store("default").prune()
    archived = ArchivedJob.objects.get(pk=job.pk)
    assert logs_of(archived.logs)[0].lines[0].message == "kept"
    assert archived.current_progress is not None
