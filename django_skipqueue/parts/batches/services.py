"""Finishes batches, and deletes those that were finished long ago.

Invariant: a batch is finished soon after its last job, however that job was finished: by a worker that died right
after the settle, by an operator, by a recovery, or by its deletion. One that cannot be finished stops no other, and is
tried again after a delay that grows.

A worker finishes the batches whose last job it may have settled, and admits the jobs that waited for these jobs.
Invariant: a job without a batch costs nothing there. A check of a batch may take long, if it has millions of jobs or if
an old snapshot keeps dead entries of an index: beside other jobs, checks that find nothing take at most a twentieth of
the worker's time, and all checks at most half of it; each finishes a limited number. A worker that dies, or whose
statement fails, leaves the batch to the supervisors.
"""

import time
from collections.abc import Callable, Collection, Mapping

from ...queue.store import Store
from ...values.records import NEVER, LeaseRef
from ...worker.dispatcher import SettleService
from ...worker.loop import Periodic
from .dependencies import admit_dependants
from .finish import Looked, finish_batches, finish_open_batches, prune_batches

FINISH_SECONDS = 1.0
"""Seconds between two looks at open batches. Workers finish most of them at once."""

LOOK_SECONDS = 0.1
"""The time after which a run looks at no further open batches: a tenth of the supervisor's time."""

FIRST_DELAY, LONGEST_DELAY = 2.0, 60.0
"""Seconds until a batch is tried again whose callbacks could not be enqueued, doubled up to the second each time."""

PRUNE_SECONDS = 60.0
"""Seconds between two looks at finished batches."""


class FinishBatches(Periodic):
    """Finishes the open batches whose jobs are finished: each time as many as it has time for, in the order of ids."""

    name = "finish_batches"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = 0
        self._failed: dict[int, tuple[float, float]] = {}
        """The delay of each batch that could not be finished, and the time of its next try."""

    def run(self, now: float) -> None:
        """Look at the next open batches. Batches that are left over are next, after a pause if others cost time."""
        until = time.monotonic() + LOOK_SECONDS
        looked = self._look(now)
        while self._after and not (looked.left or looked.failed) and time.monotonic() < until:
            looked = self._look(now)
        self.run_again_in(0.0 if looked.left and not looked.failed else FINISH_SECONDS)

    def _look(self, now: float) -> Looked:
        after, self._after = self._after, 0  # from the front again if the statement fails
        waiting = [id for id, (_, until) in self._failed.items() if until > now]
        last, looked = finish_open_batches(self._store, after=after, skipped=waiting)
        self._after = last or 0
        self._put_off(looked.failed)
        return looked

    def _put_off(self, failed: Collection[int]) -> None:
        """Leave these batches alone for a while, and forget those whose last try was long ago."""
        now = time.monotonic()
        self._failed = {id: entry for id, entry in self._failed.items() if entry[1] > now - LONGEST_DELAY}
        for id in failed:
            last_delay, _ = self._failed.get(id, (0.0, 0.0))
            delay = min(max(FIRST_DELAY, last_delay * 2), LONGEST_DELAY)
            self._failed[id] = delay, now + delay


class PruneBatches(Periodic):
    name = "prune_batches"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if prune_batches(self._store) else PRUNE_SECONDS)


SHARE = 20
"""PartStatements other jobs, a check that finds nothing is followed by a pause of this many times its duration."""

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
