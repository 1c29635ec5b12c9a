"""The services that finish batches, and that delete batches past their retention.

A batch is finished soon after its last job ends, even if the worker dies right after settling that job, or if an
operator, a recovery or a deletion ends the job. A batch that cannot be finished does not stop other batches, and is
tried again after a growing delay.

After a worker has settled jobs of batches, it finishes the batches that are done, and admits the jobs that waited for
the settled jobs. Jobs without a batch cost nothing here. Checking a batch may take long if the batch has millions of
jobs, or if an old snapshot keeps dead index entries. Therefore the time for checks is limited while the worker has
other jobs: checks that finish no batch take at most a twentieth of its time, and all checks together at most half of
its time. Each check finishes a limited number of batches. If the worker dies, or its statement fails, supervisors
finish the batch.
"""

import time
from collections.abc import Callable, Collection, Mapping

from ...queue.store import Store
from ...values.records import NEVER, LeaseRef
from ...worker.dispatcher import SettleService
from ...worker.loop import Periodic
from .dependencies import admit_dependants
from .finish import FinishResult, finish_batches, finish_open_batches, prune_batches

FINISH_SECONDS = 1.0
"""Seconds between two checks of open batches. Workers finish most batches immediately."""

CHECKING_SECONDS = 0.1
"""After this many seconds, a run stops checking open batches: it may take a tenth of the supervisor's time."""

FIRST_BATCH_DELAY, LONGEST_BATCH_DELAY = 2.0, 60.0
"""Seconds until the next try if the callbacks of a batch could not be enqueued. The delay doubles each time."""

PRUNE_BATCHES_SECONDS = 60.0
"""Seconds between two checks of finished batches."""


class FinishBatches(Periodic):
    """Finishes the open batches whose jobs are all finished, in the order of ids, until its time is up."""

    name = "finish_batches"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = 0
        self.failed: dict[int, tuple[float, float]] = {}
        """For each batch that could not be finished: the last delay, and the time of the next try."""

    def run(self, now: float) -> None:
        """Check the next open batches. The next run continues with the batches that are left."""
        deadline = time.monotonic() + CHECKING_SECONDS
        result = self._check(now)
        while self._after and not (result.not_tried or result.failed) and time.monotonic() < deadline:
            result = self._check(now)
        self.run_again_in(0.0 if result.not_tried and not result.failed else FINISH_SECONDS)

    def _check(self, now: float) -> FinishResult:
        after, self._after = self._after, 0  # if the statement fails, the next check starts at the first batch
        waiting = [id for id, (_delay, retry_at) in self.failed.items() if retry_at > now]
        last_id, result = finish_open_batches(self._store, after=after, skipped=waiting)
        self._after = last_id or 0
        self._put_off(result.failed)
        return result

    def _put_off(self, failed: Collection[int]) -> None:
        """Delay the next try of these batches, and forget batches whose last try was long ago."""
        now = time.monotonic()
        recent = now - LONGEST_BATCH_DELAY
        self.failed = {id: (delay, retry_at) for id, (delay, retry_at) in self.failed.items() if retry_at > recent}
        for id in failed:
            last_delay, _retry_at = self.failed.get(id, (0.0, 0.0))
            delay = min(max(FIRST_BATCH_DELAY, last_delay * 2), LONGEST_BATCH_DELAY)
            self.failed[id] = delay, now + delay


class PruneBatches(Periodic):
    name = "prune_batches"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if prune_batches(self._store) else PRUNE_BATCHES_SECONDS)


PAUSE_FACTOR = 20
"""While the worker has other jobs, a check without a result is followed by a pause of this many times its duration."""

LOCKED_BATCH_DELAY = 0.05
"""Seconds until the next check if another transaction had locked a batch, to add jobs or to finish it."""


class BatchCheck(SettleService):
    """The service of a worker that finishes batches. Only the control loop's thread uses it."""

    name = "batch_check"

    def __init__(self, store: Store, is_idle: Callable[[], bool] = lambda: False) -> None:
        """`is_idle`: returns whether the worker has no jobs that a check would delay."""
        self._store = store
        self._is_idle = is_idle
        self._batch_ids: set[int | None] = set()
        self._job_ids: set[int] = set()
        self._not_before = 0.0
        self._pause = 0.0
        """Seconds that are added to `_not_before` while the worker has other jobs."""

    @property
    def due_at(self) -> float:
        """Due when a job of a batch has been settled and the pause is over."""
        if not self._batch_ids:
            return NEVER
        return self._not_before if self._is_idle() else self._not_before + self._pause

    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        self._batch_ids.update(settled.values())
        self._batch_ids.discard(None)
        self._job_ids |= {job_id for (job_id, _lease), batch_id in settled.items() if batch_id is not None}

    def run(self, now: float) -> None:
        batch_ids, self._batch_ids = self._batch_ids, set()
        job_ids, self._job_ids = self._job_ids, set()
        dependants = admit_dependants(self._store, job_ids)
        admitted_at = time.monotonic()
        result = finish_batches(self._store, batch_ids - dependants.batch_ids)  # a batch with an admitted job is open
        ended = time.monotonic()
        fruitless_seconds = 0.0 if dependants.admitted else admitted_at - now
        fruitless_seconds += 0.0 if result.finished else ended - admitted_at
        self._not_before = ended + (ended - now)  # at least as long as this check has taken
        self._pause = fruitless_seconds * PAUSE_FACTOR
        self._batch_ids |= result.not_tried
        if result.missed:
            self._batch_ids |= batch_ids - result.failed
            self._not_before = max(self._not_before, ended + LOCKED_BATCH_DELAY)
