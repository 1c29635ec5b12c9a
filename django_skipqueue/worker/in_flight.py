"""The jobs that one worker holds: what it asks of the database about them, and what it does with the answers.

Invariant: a job in `jobs` is this worker's until it is known that its outcome is written, or that somebody took it, or
until it is released.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ..events import logs
from ..execution.pool import Pool
from ..runtime.control_connection import ControlConnection
from ..runtime.dispatcher import EventDispatcher
from ..runtime.worker_options import WorkerOptions
from ..store import Store
from ..store.parameters import ExchangeResult
from ..tasks.registry import RUNNER_NAMES, THREADS, registry
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .cancel_check import CancelCheck
from .claiming.kinds import Free
from .claiming.policy import ClaimPolicy
from .exchange_buffer import ExchangeBuffer
from .orphan_check import OrphanCheck
from .outcome_reports import OutcomeReports
from .pending_outcomes import PendingOutcomes
from .round_trips import Exchange, Exchanger

DEFER_RESULT_ABOVE = 100
"""A claim that brought all it asked for, and as many jobs as this, waits until the next is on its way. Others are begun
at once."""

LAST_OUTCOMES = 10.0
"""Seconds for which outcomes are written when the time to stop is over."""


class InFlightJobs:
    """Used by the control loop's thread."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        store: Store,
        control: ControlConnection,
        pool: Pool,
        dispatcher: EventDispatcher,
    ) -> None:
        self.jobs: dict[LeaseRef, ClaimedJob] = {}
        self.claiming = ClaimPolicy(options)
        self.jobs_done = 0
        self._id = id
        self._name = name
        self._options = options
        self._store = store
        self._control = control
        self._pool = pool
        self._dispatcher = dispatcher
        self._pending = PendingOutcomes()
        self._exchanger = Exchanger(store, self.claiming, self._pending, control, worker_id=id)
        self._buffer = ExchangeBuffer(self._apply)
        self._reports = OutcomeReports(dispatcher)
        self.cancel_check = CancelCheck(self.jobs.keys, self._drop_lost)
        self.orphan_check = OrphanCheck(options.worker_timeout, self._release_orphans)
        self._misplaced: list[ClaimedJob] = []  # what is to go back at once
        control.on_broken = self._connection_broke

    def room(self, now: float) -> int:
        """How many more jobs to claim, within what `--max-jobs` leaves.

        What has finished takes no room: it is settled in the round trip that claims.
        """
        if self._dispatcher.is_full or self._pending.has_more:
            return 0
        coming = self._buffer.claimed
        room = self.claiming.room(self._unfinished(), coming, now)
        if self._options.max_jobs is None:
            return room
        return max(0, min(room, self._options.max_jobs - self.jobs_done - len(self.jobs) - coming))

    def _unfinished(self) -> dict[str, int]:
        """How many jobs run and wait in each runner."""
        return {runner: self._pool.unfinished(runner) for runner in RUNNER_NAMES}

    def _finished(self) -> list[Attempt]:
        """The attempts that are over, and not yet counted by the claim policy."""
        taken = [attempt for attempt in self._pool.finished.copy() if isinstance(attempt, Attempt)]
        return [*self._pending.attempts, *taken, *self._buffer.attempts]

    @property
    def has_finished(self) -> bool:
        """Whether attempts have finished since the last exchange was sent."""
        return bool(self._pool.finished)

    @property
    def has_waiting(self) -> bool:
        """Whether more jobs are held than can run at once."""
        return (
            len(self.jobs) > self._options.concurrency and max(self._unfinished().values()) > self._options.concurrency
        )

    @property
    def has_misplaced(self) -> bool:
        """Whether jobs were claimed of a kind for which there was no room."""
        return bool(self._misplaced)

    def has_outcomes(self, now: float) -> bool:
        """Whether outcomes are to be written."""
        return self.has_finished or self._pending.is_due(now)

    def exchange_is_due(self, room: int, now: float) -> bool:
        """Whether there is a reason to go to the database for somebody with so much room."""
        return (room > 0 and self.claiming.next_look <= now) or self.has_outcomes(now)

    def next_exchange(self, room: Callable[[float], int]) -> float:
        """When an exchange is due, or a result is to be applied. `room` is asked only if it makes a difference."""
        now = time.monotonic()
        if not self._buffer.is_empty or self.has_outcomes(now):
            return 0.0
        pending = self._pending.next_turn
        if self.claiming.next_look >= pending:
            return pending
        return self.claiming.next_look if room(now) else pending

    # With the database, in one round trip

    def exchange(self, room: int) -> bool:
        """Settle what finished, and claim up to `room` jobs; whether it found the queues empty.

        The result of the one before is applied while the database works. That of a small one is applied at once.
        """
        self._pending.add(self._pool.take_finished())
        found_empty = False
        with self._control.handling_errors():
            if self._options.listen:
                self._control.listen()
            exchanged = self._exchanger.exchange(room, None if self._buffer.is_empty else self.apply_exchange)
            self.apply_exchange()  # where an outcome was refused, that was not done meanwhile
            self._buffer.put(exchanged)
            if exchanged.answer.count_claimed() < max(exchanged.room, DEFER_RESULT_ABOVE):
                found_empty = self.apply_exchange()
        if self._control.is_broken:
            self._exchanger.failed(timed_out=self._control.timed_out, now=time.monotonic())
        self._report_lost()
        return found_empty

    def apply_exchange(self) -> bool:
        """Apply the result of the last exchange, if it waits; whether that has found the queues empty."""
        return self._buffer.apply()

    def _apply(self, exchanged: Exchange) -> bool:
        self._written(exchanged.attempts, exchanged.answer)
        claimed = exchanged.answer.claimed()
        self._take(claimed, exchanged.free)
        return exchanged.room > 0 and self.claiming.claimed(
            claimed,
            room=exchanged.room,
            names=exchanged.answer.queue_names,
            after=exchanged.after,
            started=exchanged.started,
            ended=exchanged.ended,
        )

    def _written(self, attempts: list[Attempt], answer: ExchangeResult) -> None:
        """Note that the database has answered for these, and tell the world."""
        if not attempts:
            return
        self._reports.sent(attempts, answer)
        for attempt in attempts:
            self.jobs.pop(attempt.job.ref, None)
        self.jobs_done += len(attempts)
        self.claiming.finished(_count_by_runner(attempts), time.monotonic())

    def _take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Have the jobs run, but for those that were claimed beside others, when there was no room for their kind."""
        if claimed:
            self.jobs.update((job.ref, job) for job in claimed)
            if not all(free.values()):
                self._misplaced += [job for job in claimed if not free[registry.runner_of(job.task)]]
                claimed = [job for job in claimed if free[registry.runner_of(job.task)]]
            self._pool.submit(claimed)

    def _report_lost(self) -> None:
        if self._reports.lost and not self._control.is_broken:
            with self._control.handling_errors():
                self._reports.report_lost(self._store)

    # What others take away

    def _drop_lost(self, refs: Sequence[LeaseRef]) -> None:
        """Drop those of these jobs whose leases are lost, and interrupt those that run."""
        self.apply_exchange()
        held = [ref for ref in refs if ref in self.jobs]
        lost_leases = self._store.lost_leases(held) if held else {}
        if lost_leases:
            for job in self._pool.drop(lost_leases):
                del self.jobs[job.ref]
        for ref, reason in lost_leases.items():
            if ref in self.jobs:
                self._pool.cancel(self.jobs[ref], reason or "the job was taken from this worker")

    # Giving back

    def release_surplus(self, now: float) -> None:
        """Give back, the last claimed first, what would wait here for too long: others may run it, or something urgent.

        What has finished and is not written yet is progress as well. The last exchange is applied only if there is
        something to give back: it is to wait for the next one.
        """
        surplus = self.claiming.surplus(self._unfinished(), _count_by_runner(self._finished()), now)
        if any(surplus.values()) or self._misplaced:
            self.apply_exchange()
            self._release_withdrawn(self._pool.withdraw_last(surplus))

    def release_unstarted(self) -> None:
        """Give back what no thread has begun."""
        self.apply_exchange()
        self._release_withdrawn(self._pool.withdraw())

    def _release_withdrawn(self, withdrawn: list[ClaimedJob]) -> None:
        """Release what came back from the pool, and what never came into it."""
        withdrawn, self._misplaced = withdrawn + self._misplaced, []
        if withdrawn:
            if locked := self._locked(withdrawn):
                self.orphan_check.expect(time.monotonic())
            self._forget([job for job in withdrawn if job.id in locked])
            self._release([job for job in withdrawn if job.id not in locked])

    def settle_last(self) -> None:
        """Write what has finished, when there is no other time."""
        self._pending.look_now()
        failures, deadline = 0, time.monotonic() + LAST_OUTCOMES
        while failures < 2 and self.has_outcomes(now := time.monotonic()) and now < deadline:
            if self.orphan_check.due_at <= now:
                with self._control.handling_errors(refused=self.orphan_check.refused):
                    self.orphan_check.run(now)
            self.exchange(0)
            failures += self._control.is_broken  # a connection that broke is opened again
        self._report_lost()

    def release_running(self) -> bool:
        """When the time is over: settle what is finished, release the rest; whether anything still runs.

        The locked ones come first, and are waited for: their own transactions may be about to end. The others may begin
        elsewhere as soon as they are released, and this process must be gone then.
        """
        self.settle_last()
        running = list(self.jobs.values())
        locked = self._locked(running)
        running_released = 0
        finished = self._pending.refs()  # not waited for: nobody knows until when
        for jobs in (
            [job for job in running if job.id in locked and job.ref not in finished],
            [job for job in running if job.id not in locked],
        ):
            self._release(jobs)
            running_released += 0 if self._control.is_broken else len(jobs)
        if running_released:
            logs.running_released(self._name, running_released)
        return bool(running)

    def _locked(self, jobs: list[ClaimedJob]) -> set[int]:
        """Of which of them somebody has the rows locked: released with the others, they would fail those as well."""
        locked: set[int] = set()
        if jobs:
            with self._control.handling_errors():
                locked = self._store.locked(job.ref for job in jobs)
        return locked

    def _release(self, jobs: list[ClaimedJob]) -> None:
        """Give jobs back. Those that cannot be given back now are orphans then: the next check finds them."""
        if jobs:
            with self._control.handling_errors():
                self._store.release(job.ref for job in jobs)
        self._forget(jobs)

    def _forget(self, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            self.jobs.pop(job.ref, None)

    # After the connection broke

    def _connection_broke(self) -> None:
        """Run what is held already, and look for claims that were committed and never heard of."""
        self.apply_exchange()
        self.claiming.start_over()
        self.orphan_check.expect(time.monotonic())

    def _release_orphans(self) -> None:
        self.apply_exchange()
        orphans = self._store.release_orphans(self._id, known=[job.id for job in self.jobs.values()])
        if orphans:
            logs.orphans_released(self._name, len(orphans))


def _count_by_runner(attempts: list[Attempt]) -> Mapping[str, int]:
    """How many of these each runner has run. Costs nothing where a project has `def` tasks alone."""
    if registry.uses_threads_alone:
        return dict.fromkeys(RUNNER_NAMES, 0) | {THREADS: len(attempts)}
    return dict.fromkeys(RUNNER_NAMES, 0) | Counter(registry.runner_of(attempt.job.task) for attempt in attempts)
