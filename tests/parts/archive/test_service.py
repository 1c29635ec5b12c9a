"""`ArchivePartitions`: makes the partitions of the archive, and drops them."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import override_settings

from django_skipqueue.parts.archive.move import PARTITIONS_SECONDS, ArchivePartitions
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ...app.rows import make_job
from ...harness.partitions import drop_partitions, partitions
from ...supervisor.test_services import roughly, run_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def without_partitions() -> Iterator[None]:
    """Drop all partitions before and after the test."""
    drop_partitions()
    yield
    drop_partitions()


@pytest.mark.usefixtures("without_partitions")
@override_settings(SKIPQUEUE={"ARCHIVE": timedelta(days=30)})
def test_the_service_makes_partitions_ahead_and_drops_one_expired_partition_at_a_time() -> None:
    service = ArchivePartitions(Store("default"))
    assert run_once(service) == roughly(PARTITIONS_SECONDS)
    assert len(partitions()) == 3
    with override_settings(SKIPQUEUE={"ARCHIVE": None}):
        for days in (100, 200):
            make_job("failed", finished_at=timedelta(days=-days))
        Pruner(Store("default")).batch()
    assert len(partitions()) == 5
    # each run drops one of the two expired partitions, and is due again at once
    assert [run_once(service), run_once(service)] == [0.0, 0.0]
    assert run_once(service) == roughly(PARTITIONS_SECONDS)
    assert len(partitions()) == 3


@pytest.mark.usefixtures("without_partitions")
def test_without_an_archive_the_service_makes_no_partitions() -> None:
    assert run_once(ArchivePartitions(Store("default"))) == roughly(PARTITIONS_SECONDS)
    assert partitions() == []
