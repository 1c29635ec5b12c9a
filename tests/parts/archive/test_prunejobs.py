"""`manage.py prunejobs` of a project with an archive."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import override_settings

from django_skipqueue.models import ArchivedJob, Job

from ...app.rows import make_job
from ...harness.partitions import drop_partitions, partitions
from ...management.test_prunejobs import prunejobs

pytestmark = pytest.mark.django_db(transaction=True)


@override_settings(SKIPQUEUE={"ARCHIVE": None})
def test_prunejobs_fails_with_the_reason_if_partitions_cannot_be_made(connect: Callable[..., Any]) -> None:
    locking_session = connect(autocommit=False)
    locking_session.execute("LOCK TABLE skipqueue_archivedjob IN SHARE UPDATE EXCLUSIVE MODE")
    with pytest.raises(CommandError, match=r"partitions of the archive .* lock timeout"):
        prunejobs()
    locking_session.rollback()


@override_settings(SKIPQUEUE={"ARCHIVE": None})
def test_prunejobs_moves_finished_jobs_into_the_archive() -> None:
    try:
        make_job("failed", finished_at=timedelta(days=-90))
        assert prunejobs() == "Archived 1 jobs: 1 failed.\n"
        assert (Job.objects.count(), ArchivedJob.objects.count()) == (0, 1)
        assert len(partitions()) == 4, "one partition for the job, and three for this month and the next two months"
        with override_settings(SKIPQUEUE={"ARCHIVE": timedelta(days=31)}):
            prunejobs()
        assert len(partitions()) == 3
        assert not ArchivedJob.objects.exists()
    finally:
        drop_partitions()
