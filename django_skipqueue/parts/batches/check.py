"""Finishes the batches whose last job this worker may have settled, and admits the jobs that waited for these jobs.

Invariant: a job without a batch costs nothing here. A check of a batch may take long, if it has millions of jobs or if
an old snapshot keeps dead entries of an index: beside other jobs, checks in vain take at most a twentieth of the
worker's time, and all checks at most half of it; each finishes a limited number. A worker that dies, or whose statement
fails, leaves the batch to the supervisors.
"""

import time
from collections.abc import Callable, Mapping

from ...queue.store import Store
from ...values.records import NEVER, LeaseRef
from ...worker.dispatcher import SettleService
from .dependencies import admit_dependants
from .finish import finish_batches

SHARE = 20
"""Beside other jobs, a check in vain is followed by a pause of this many times its duration."""

LOCKED_DELAY = 0.05
"""Seconds until the next check, if somebody else had locked a batch: to add jobs to it, or to finish it."""


class BatchCheck(SettleService):
    """The service that finishes batches. Used by the control loop's thread."""

    name = "batch_check"

    def __init__(self, store: Store, is_idle: Callable[[], bool] = lambda: False) -> None:
        """`is_idle`: whether the worker has no job that could be delayed."""
        self._store = store
        self._is_idle = is_idle
        self._batch_ids: set[int | None] = set()
        self._job_ids: set[int] = set()
        self._not_before = 0.0
        self._pause = 0.0
        """Seconds after that, beside other jobs."""

    @property
    def due_at(self) -> float:
        """As soon as a job of a batch is settled, but after the pause."""
        if not self._batch_ids:
            return NEVER
        return self._not_before if self._is_idle() else self._not_before + self._pause

    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        self._batch_ids.update(settled.values())
        self._batch_ids.discard(None)
        if self._batch_ids:
            self._job_ids |= {id for (id, _), batch_id in settled.items() if batch_id is not None}

    def run(self, now: float) -> None:
        batch_ids, self._batch_ids = self._batch_ids, set()
        job_ids, self._job_ids = self._job_ids, set()
        dependants = admit_dependants(self._store, job_ids)
        admitted_at = time.monotonic()
        looked = finish_batches(self._store, batch_ids - dependants.batch_ids)  # these have an unfinished job
        ended = time.monotonic()
        in_vain = 0.0 if dependants.admitted else admitted_at - now
        in_vain += 0.0 if looked.finished else ended - admitted_at
        self._not_before = ended + (ended - now)
        self._pause = in_vain * SHARE
        self._batch_ids |= looked.left
        if looked.missed:
            self._batch_ids |= batch_ids - looked.failed
            self._not_before = max(self._not_before, ended + LOCKED_DELAY)
