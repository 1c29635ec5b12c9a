"""Finishes the batches whose last job this worker may have settled, and admits the jobs that waited for these jobs.

Invariant: a job without a batch costs nothing here. A check of a batch may take long, if it has millions of jobs or if
an old snapshot keeps dead entries of an index: the checks take at most a twentieth of the worker's time, and each
finishes a limited number. A worker that dies, or whose statement fails, leaves the batch to the supervisors.
"""

import time
from collections.abc import Mapping

from ..runtime.service import Service
from ..store import Store
from ..values.records import LeaseRef
from ..values.times import NEVER

SHARE = 20
"""A check is followed by a pause of this many times its duration."""

LOCKED_DELAY = 0.05
"""Seconds until the next check, if somebody else had locked a batch: to add jobs to it, or to finish it."""


class BatchCheck(Service):
    """The service that finishes batches. Used by the control loop's thread."""

    name = "batch_check"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch_ids: set[int | None] = set()
        self._job_ids: set[int] = set()
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        """As soon as a job of a batch is settled, but after the pause."""
        return self._not_before if self._batch_ids else NEVER

    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        """Note the batches of the jobs that were settled."""
        self._batch_ids.update(settled.values())
        self._batch_ids.discard(None)
        if self._batch_ids:
            self._job_ids |= {id for (id, _), batch_id in settled.items() if batch_id is not None}

    def run(self, now: float) -> None:
        """Admit the jobs that waited, and finish the batches that are done."""
        batch_ids, self._batch_ids = self._batch_ids, set()
        job_ids, self._job_ids = self._job_ids, set()
        self._store.admit_dependants(job_ids)
        looked = self._store.finish_batches(batch_ids)
        ended = time.monotonic()
        self._not_before = ended + (ended - now) * SHARE
        self._batch_ids |= looked.left
        if looked.missed:
            self._batch_ids |= batch_ids - looked.failed
            self._not_before = max(self._not_before, ended + LOCKED_DELAY)
