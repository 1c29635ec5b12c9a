"""The clean-up after a test that commits also empties the partitions of the archive."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.models import ArchivedJob
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ...app.rows import make_job
from ...harness.partitions import partitions
from ...test_flush import empty_filled_tables

pytestmark = pytest.mark.django_db


def test_a_filled_partition_is_emptied(settings: Any) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": timedelta(days=365)}
    make_job("completed", finished_at=timedelta(days=-100))
    Pruner(Store("default")).batch()
    assert ArchivedJob.objects.exists()
    empty_filled_tables()
    assert not ArchivedJob.objects.exists()
    assert partitions() == []
