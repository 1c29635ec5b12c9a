"""Keeps the partitions of the archive, one for each month.

Invariant: the partition of a month exists before its first job finishes, and is dropped as a whole once the last of its
jobs is past the retention of the archive. Without an archive nothing is made, and nothing dropped.
"""

from ...conf import settings
from ...queue.store import Store
from ...worker.loop import Periodic
from .move import drop_partition, make_partitions

MONTHS_AHEAD = 2

PARTITIONS_SECONDS = 3600.0
"""Seconds between two looks at the partitions."""


class ArchivePartitions(Periodic):
    """Makes the partitions of the next months, and drops those that are past the retention of the archive."""

    name = "archive"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if keep_partitions(self._store) else PARTITIONS_SECONDS)


def keep_partitions(store: Store) -> bool:
    """Make the missing partitions, and drop one. Returns whether there may be more to drop."""
    if not settings.has_archive:
        return False
    make_partitions(store, ahead=MONTHS_AHEAD)
    return drop_partition(store)
