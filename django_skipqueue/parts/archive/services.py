"""Moves pruned jobs to the archive, and keeps its partitions, one for each month.

Invariant: the partition of a month exists before its first job finishes, and is dropped as a whole once the last of its
jobs is past the retention of the archive. Without an archive nothing is made, and nothing dropped.
"""

import time
from collections.abc import Callable

from django.db import DatabaseError

from ...conf import settings
from ...queue.parameters import as_array
from ...queue.store import Store
from ...worker.loop import Periodic
from .logs import partitions_not_made
from .move import ARCHIVE, drop_partition, make_partitions

MONTHS_AHEAD = 2

PARTITIONS_SECONDS = 3600.0
"""Seconds between two looks at the partitions."""

RETRY_SECONDS = 60.0
"""Seconds until the partitions that finished jobs need are tried again if they could not be made."""


def archive(store: Store, ids: list[int]) -> dict[str, int] | None:
    """See `Part.on_prune`. Without an archive, the core deletes the jobs."""
    if not settings.has_archive:
        return None
    return dict(store.rows(ARCHIVE, {"ids": as_array(ids), "kept": settings.archive_retention}))


def missing_partitions(store: Store) -> Callable[[], None]:
    """Return a function that makes the partitions that finished jobs need: at its first call, and then once an hour.

    Without the partition of its month, a job stays in the job table.
    """
    due_at = 0.0  # in monotonic seconds

    def make() -> None:
        nonlocal due_at
        if settings.has_archive and time.monotonic() >= due_at:
            due_at = time.monotonic() + PARTITIONS_SECONDS
            try:
                make_partitions(store)
            except DatabaseError as error:
                due_at = time.monotonic() + RETRY_SECONDS
                partitions_not_made(error, RETRY_SECONDS)

    return make


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
