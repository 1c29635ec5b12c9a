"""The jobs that one worker holds: what it asks of the database about them, and what it does with the answers.

Invariant: a job in `jobs` is this worker's until it is known that its outcome is written, or that somebody took it, or
until it is released. What the last exchange has brought is taken up before anything but the next exchange happens.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error

from ..events import logs
from ..execution.pool import Pool
from ..runtime.control_connection import ControlConnection
from ..runtime.dispatcher import EventDispatcher
from ..runtime.worker_options import WorkerOptions
from ..store import Store
from ..store.parameters import ExchangeResult
from ..tasks.registry import EVENT_LOOP, THREADS, registry
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .cancel_check import CancelCheck
from .claiming.kinds import Free
from .claiming.policy import ClaimPolicy
from .orphan_check import OrphanCheck
from .outcome_reports import OutcomeReports
from .pending_outcomes import PendingOutcomes
from .round_trips import Exchange, Exchanger

SURPLUS_CHECK_SECONDS = 0.1
"""Seconds between two looks at what waits here too long."""

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
        self._unapplied: Exchange | None = None  # while what it has brought is still to be taken up
        self._reports = OutcomeReports(dispatcher)
        self._cancel_check = CancelCheck()
        self._orphan_check = OrphanCheck(options.worker_timeout)
        self._next_surplus_check = 0.0
        self._misplaced: list[ClaimedJob] = []  # what is to go back at once

    def room(self, now: float) -> int:
        """How many more jobs to claim, within what `--max-jobs` leaves.

        What has finished takes no room: it is settled in the round trip that claims.
        """
        if self._dispatcher.is_full or self._pending.has_more:
            return 0
        coming = self._unapplied.answer.count_claimed() if self._unapplied else 0
        threads, coroutines = self._unfinished()
        room = self.claiming.room(threads, coroutines, coming, now)
        if self._options.max_jobs is None:
            return room
        return max(0, min(room, self._options.max_jobs - self.jobs_done - len(self.jobs) - coming))

    def _unfinished(self) -> tuple[int, int]:
        """How many jobs run and wait here: of `def` tasks, and of `async def` tasks."""
        finished = len(self._pending) + len(self._pool.finished)
        if self._unapplied:
            finished += len(self._unapplied.attempts)
        coroutines = self._pool.unfinished(EVENT_LOOP)
        return len(self.jobs) - finished - coroutines, coroutines

    def _finished(self) -> list[Attempt]:
        """The attempts that are over, and not yet counted by the claim policy."""
        taken = [attempt for attempt in self._pool.finished.copy() if isinstance(attempt, Attempt)]
        return self._pending.attempts + taken + (self._unapplied.attempts if self._unapplied else [])

    def has_outcomes(self, now: float) -> bool:
        """Whether outcomes are to be written."""
        return bool(self._pool.finished) or self._pending.is_due(now)

    def exchange_is_due(self, room: int, now: float) -> bool:
        """Whether there is a reason to go to the database, and it can be gone to, for somebody with so much room."""
        if now < self._control.retry_at:
            return False
        look = room > 0 and self.claiming.next_look <= now
        return look or self.has_outcomes(now) or self._orphan_check.next_at <= now

    def next_turn(self, room: int, now: float) -> float:
        """When something is to be done that no outcome, no notification and no command asks for."""
        if self._unapplied:
            return now
        until = self._orphan_check.next_at
        if room:
            until = min(until, self.claiming.next_look)
        if self.jobs:
            until = min(until, self._pool.next_deadline, self._cancel_check.next_look)
            if max(self._unfinished()) > self._options.concurrency:
                until = min(until, self._next_surplus_check)
        return until

    # With the database, in one round trip

    def exchange(self, room: int) -> bool:
        """Settle what finished, and claim up to `room` jobs; whether it found the queues empty.

        What the one before has brought is taken up while the database works. Of two that follow each other closely, the
        first is taken up while the second is on its way: a quarter more jobs a second where they take no time.
        """
        self._pending.add(self._pool.take_finished())
        now = time.monotonic()
        found_empty = False
        if not self._release_orphans(now):
            return False
        with self.guarded():
            if self._options.listen:
                self._control.listen()
            exchanged = self._exchanger.exchange(room, self.apply_exchange if self._unapplied else None)
            self.apply_exchange()  # where an outcome was refused, that was not done meanwhile
            self._unapplied = exchanged
            if exchanged.answer.count_claimed() < max(exchanged.room, DEFER_RESULT_ABOVE):
                found_empty = self.apply_exchange()
        if self._control.is_broken:
            self._exchanger.failed(timed_out=self._control.timed_out, now=time.monotonic())
        self._report_lost()
        return found_empty

    def apply_exchange(self) -> bool:
        """Take up what the last exchange has brought, if that is still to be done; whether it found the queues empty.

        Asks nothing of the database.
        """
        if self._unapplied is None:
            return False
        exchanged, self._unapplied = self._unapplied, None
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
        coroutines = _count_coroutines(attempts)
        self.claiming.finished(len(attempts) - coroutines, coroutines, time.monotonic())

    def _take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Have the jobs run, but for those that were claimed beside others, when there was no room for their kind."""
        if claimed:
            self.jobs.update((job.ref, job) for job in claimed)
            if not all(free):
                self._misplaced += [job for job in claimed if not free.for_job(job)]
                claimed = [job for job in claimed if free.for_job(job)]
            self._pool.submit(claimed)

    def _report_lost(self) -> None:
        if self._reports.lost and not self._control.is_broken:
            with self.guarded():
                self._reports.report_lost(self._store)

    # What others take away

    def drop_cancelled(self, now: float) -> None:
        """Drop and interrupt the jobs that were cancelled, or taken from us by a recovery."""
        if not self.jobs or now < max(self._cancel_check.next_look, self._control.retry_at):
            return
        self.apply_exchange()
        refs = self._cancel_check.due(self.jobs, now)
        if not refs:
            return
        lost_leases: dict[LeaseRef, str | None] = {}
        with self.guarded():
            lost_leases = self._store.lost_leases(refs)
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
        if now < self._control.retry_at or (now < self._next_surplus_check and not self._misplaced):
            return
        self._next_surplus_check = now + SURPLUS_CHECK_SECONDS
        threads, coroutines = self._unfinished()
        finished = self._finished()
        of_coroutines = _count_coroutines(finished)
        threads = self.claiming.threads.surplus(threads - (len(finished) - of_coroutines), now)
        coroutines = self.claiming.coroutines.surplus(coroutines - of_coroutines, now)
        if threads or coroutines or self._misplaced:
            self.apply_exchange()
            self._release_withdrawn(self._pool.withdraw_last({THREADS: threads, EVENT_LOOP: coroutines}))

    def release_unstarted(self) -> None:
        """Give back what no thread has begun."""
        self.apply_exchange()
        self._release_withdrawn(self._pool.withdraw())
        self._next_surplus_check = float("inf")  # nobody looks any more

    def _release_withdrawn(self, withdrawn: list[ClaimedJob]) -> None:
        """Release what came back from the pool, and what never came into it."""
        withdrawn, self._misplaced = withdrawn + self._misplaced, []
        if withdrawn:
            if locked := self._locked(withdrawn):
                self._orphan_check.expect(time.monotonic())
            self._forget([job for job in withdrawn if job.id in locked])
            self._release([job for job in withdrawn if job.id not in locked])

    def settle_last(self) -> None:
        """Write what has finished, when there is no other time."""
        self._pending.look_now()
        failures, deadline = 0, time.monotonic() + LAST_OUTCOMES
        while failures < 2 and self.has_outcomes(now := time.monotonic()) and now < deadline:
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
            with self.guarded():
                locked = self._store.locked(job.ref for job in jobs)
        return locked

    def _release(self, jobs: list[ClaimedJob]) -> None:
        """Give jobs back. Those that cannot be given back now are orphans then: the next check finds them."""
        if jobs:
            with self.guarded():
                self._store.release(job.ref for job in jobs)
        self._forget(jobs)

    def _forget(self, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            self.jobs.pop(job.ref, None)

    # The connection

    @contextmanager
    def guarded(self, *, refused: Callable[[Error], object] | None = None) -> Iterator[None]:
        """Ask the database something. An error is not raised: the next exchange begins with a new connection.

        With `refused`, one that leaves the connection as good as it was is passed to that instead.
        """
        with self._control.attempt(refused=refused):
            yield
        if self._control.is_broken:
            self.apply_exchange()  # what is held already need not wait for the database
            self.schedule_orphan_check(time.monotonic())

    def hear(self) -> None:
        """Take up the notifications that have come, and look for jobs at once where they concern us."""
        if self._control.fileno() is not None:
            with self.guarded():
                self.claiming.heard(self._control.notified())

    def schedule_orphan_check(self, now: float) -> None:
        """A claim may have been committed and never heard of."""
        self.claiming.start_over()
        self._orphan_check.expect(now)

    def _release_orphans(self, now: float) -> bool:
        """Look for them, if it is time. False: the connection has broken. That it is refused keeps nothing else."""
        if self._orphan_check.next_at > now:
            return True
        self.apply_exchange()
        with self.guarded(refused=lambda _: self._orphan_check.refused(time.monotonic())):
            orphans = self._store.release_orphans(self._id, known=[job.id for job in self.jobs.values()])
            self._orphan_check.done(time.monotonic())
            if orphans:
                logs.orphans_released(self._name, len(orphans))
        return not self._control.is_broken


def _count_coroutines(attempts: list[Attempt]) -> int:
    """How many of these were of `async def` tasks. Costs nothing where a project has none."""
    return sum(registry.is_async(attempt.job.task) for attempt in attempts) if registry.has_async else 0
