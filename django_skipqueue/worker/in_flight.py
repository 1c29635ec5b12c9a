"""The jobs that one worker holds: claims, runs, settles and releases them, as two services ask for it.

Invariant: a job stays in `jobs` until the worker has settled or released it, or has found that its lease is lost.

The worker sends the next exchange first, and decodes the rows of the last one while the database works. Where jobs take
no time, that is a fifth more jobs a second.

Invariant: at most one result of an exchange waits in `ExchangeBuffer`, and it is applied once. All code that drops or
releases jobs of the worker applies the result first. Code that only counts or reads the jobs may run before that:
`room` adds `claimed`, the check for surplus jobs adds `attempts`, and the check for cancelled jobs covers the new jobs
from its next run on.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from ..events import logs
from ..jobs.registry import RUNNER_NAMES, THREADS, registry
from ..queue.notify import jobs_in
from ..queue.parameters import ExchangeResult
from ..queue.store import Store
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .attempts.pool import Pool
from .claiming import PATIENCE, ClaimPolicy, Free, Plan
from .control_connection import ControlConnection
from .dispatcher import EventDispatcher, Observers, settle_services
from .in_exchange import InExchange
from .loop import Service
from .notes import WriteNotes
from .options import WorkerOptions
from .outcomes import OutcomeReports, PendingOutcomes
from .protocol import Standby
from .round_trips import Exchange, Exchanger
from .watchers import CancelCheck, OrphanCheck, Suspects

DEFER_RESULT_ABOVE = 100
"""The result of a claim waits for the next exchange if it has this many jobs. Those of a smaller one start at once."""

SURPLUS_CHECK_SECONDS = 0.1
"""Seconds between two checks of the jobs that wait here."""

LAST_OUTCOMES = 10.0
"""Seconds for which a worker goes on writing outcomes after its time to stop."""


class InFlightJobs(Service):
    """Sends one exchange per run, as soon as an outcome waits, or a claim is due and a slot is free.

    Used by the control loop's thread.
    """

    name = "settle_and_claim"
    loop_handles_errors = False  # it handles the errors of each statement

    def __init__(  # noqa: PLR0913 (a worker has one of each)
        self,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        store: Store,
        control: ControlConnection,
        pool: Pool,
        dispatcher: EventDispatcher,
        standby: Standby,
        in_exchange: InExchange,
        may_claim: Callable[[float], bool],
        exchanged: Callable[[bool], object],
    ) -> None:
        """`exchanged` is called after each exchange with whether all queues were found empty."""
        self.jobs: dict[LeaseRef, ClaimedJob] = {}
        self.claiming = ClaimPolicy(options, standby, holds=self._holds)
        self.jobs_claimed = 0
        self.jobs_done = 0
        self._standby = standby
        self._id = id
        self._name = name
        self._options = options
        self._store = store
        self._control = control
        self._pool = pool
        self._dispatcher = dispatcher
        self._pending = PendingOutcomes()
        self._in_exchange = in_exchange
        self._may_claim = may_claim
        self._exchanged = exchanged
        self._exchanger = Exchanger(store, self.claiming, self._pending, control, worker_id=id, in_exchange=in_exchange)
        self._buffer = ExchangeBuffer(self._apply)
        self._observers = Observers()
        self._reports = OutcomeReports(dispatcher, self._observers.made)
        self.cancel_check = CancelCheck(self.jobs.keys, self._drop_lost)
        self.settle_services = settle_services(store, is_idle=lambda: not self.jobs)
        self.orphan_check = OrphanCheck(options.worker_timeout, self._release_orphans)
        self.observing = self._observers.services(store)
        self.suspects = Suspects(standby, self._put_back)
        self.write_notes = WriteNotes(store, lambda: pool.attempts)
        self._misplaced: list[ClaimedJob] = []  # claimed although their runner was full: to be released at once
        self._next_surplus_check = 0.0
        control.on_broken = self._connection_broke

    def room(self, now: float) -> int:
        """How many more jobs to claim, within `--max-jobs`.

        A finished job takes no room: the round trip that claims also settles it.
        """
        if not self._may_claim(now) or self._dispatcher.is_full or self._pending.has_more:
            return 0
        coming = self._buffer.claimed
        room = self.claiming.room(self._unfinished(), coming, now, unresponsive=self._pool.unresponsive(now))
        if self._options.max_jobs is None:
            return room
        return max(0, min(room, self._options.max_jobs - self.jobs_done - len(self.jobs) - coming))

    def offer(self, room: int) -> None:
        """Show the supervisor how many jobs could begin at once, whatever their runner, and how many run."""
        slots, unfinished = self._options.concurrency, self._unfinished().values()
        free = 0 if self._pool.unresponsive(time.monotonic()) else max(slots - max(unfinished), 0)
        running = sum(min(jobs, slots) for jobs in unfinished)
        self._standby.offer(slots=min(free, room), room=room, claimed=self.jobs_claimed, running=running)

    def _holds(self, are_meant: Callable[[str], bool]) -> int:
        """How many unfinished jobs it has of the queues whose names are meant."""
        ended = self._pending.refs().union(self._pool.kept_back)
        return sum(are_meant(job.queue_name) for ref, job in self.jobs.items() if ref not in ended)

    def _unfinished(self) -> dict[str, int]:
        return {runner: self._pool.unfinished(runner) for runner in RUNNER_NAMES}

    @property
    def has_open_jobs(self) -> bool:
        """Whether it has jobs beside those whose stuck attempts keep their permits."""
        return len(self.jobs) > len(self._pool.kept_back)

    # Settle and claim, in one round trip

    @property
    def due_at(self) -> float:
        return self._plan(time.monotonic()).at

    def run(self, now: float) -> None:
        plan = self._plan(now)
        if plan.applies:
            self.apply_exchange()
            plan = self._plan(now)
        if plan.sends:
            self._exchanged(self.exchange(plan))

    def notified(self, payloads: Collection[str]) -> None:
        self.claiming.queues_notified({jobs_in(payload)[0] for payload in payloads} - {""})

    def _plan(self, now: float) -> Plan:
        has_result, has_finished = not self._buffer.is_empty, bool(self._pool.finished)
        return self._exchanger.plan(self.room(now), now, has_result=has_result, has_finished=has_finished)

    def exchange(self, plan: Plan) -> bool:
        """Settle finished attempts and claim jobs, as planned. Returns whether the queues were found empty.

        The previous result is applied while the database works. The result of a small claim is applied at once.
        """
        self._pending.add(self._pool.take_finished())
        found_empty = False
        with self._control.handling_errors():
            if self._standby.is_session or self._control.is_session:
                self._control.prepare_statements()
            self._standby.looks()
            exchanged = self._exchanger.exchange(plan, None if self._buffer.is_empty else self.apply_exchange)
            if exchanged.room:
                self._standby.looked()
            self.apply_exchange()  # not yet applied if the database refused an outcome
            self._buffer.put(exchanged)
            if exchanged.answer.count_claimed() < DEFER_RESULT_ABOVE:
                found_empty = self.apply_exchange()
            self._control.note_exchange(exchanged.ended - exchanged.started)  # last: it may send a statement
        if self._control.is_broken:
            self._exchanger.failed(timed_out=self._control.timed_out, now=time.monotonic())
        self._report_lost()
        return found_empty

    def apply_exchange(self) -> bool:
        """Apply the result of the last exchange, if it waits. Returns whether that exchange found the queues empty."""
        return self._buffer.apply()

    def _apply(self, exchanged: Exchange) -> bool:
        self._take_ahead(self._in_exchange.claimed_ahead(exchanged.answer))
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
        if not attempts:
            return
        settled = answer.settled()
        self._reports.sent(attempts, settled, answer.refused)
        for service in self.settle_services:
            service.settled(settled)
        self._forget([attempt.job for attempt in attempts])
        for attempt in attempts:
            if attempt.is_written:
                self.write_notes.add_late(attempt)
        self.jobs_done += len(attempts)
        now = time.monotonic()
        for runner, count in _count_by_runner(attempts).items():
            self.claiming.capacities[runner].finished(count, now)

    def _take_ahead(self, claimed: list[ClaimedJob]) -> None:
        if claimed:
            for observer in self._observers.made:
                observer.claimed(claimed)
            self.jobs.update((job.ref, job) for job in claimed)
            self._pool.lines.claimed(claimed, ahead=True)
            self._pool.submit(claimed)

    def _take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Hand the jobs to their runners. Jobs whose runner had no room are put aside to be released."""
        if claimed:
            self.jobs_claimed += len(claimed)
            for observer in self._observers.made:
                observer.claimed(claimed)
            self._in_exchange.claimed(claimed)
            self.jobs.update((job.ref, job) for job in claimed)
            if self._options.concurrency > 1 and any(job.is_suspect for job in claimed):
                self.suspects.take([job for job in claimed if job.is_suspect], time.monotonic())
                claimed = [job for job in claimed if not job.is_suspect]
            self._pool.lines.claimed(claimed)  # a suspect takes its permit along, to the process that runs it
            if full := {task for task in {job.task for job in claimed} if not free[registry.runner_of(task)]}:
                self._misplaced += [job for job in claimed if job.task in full]
                claimed = [job for job in claimed if job.task not in full]
            self._pool.submit(claimed)

    def take_over(self, suspect: ClaimedJob) -> None:
        self.jobs[suspect.ref] = suspect
        self._pool.lines.claimed([suspect])
        self._pool.submit([suspect])

    def _report_lost(self) -> None:
        if self._reports.lost and not self._control.is_broken:
            with self._control.handling_errors():
                self._reports.report_lost(self._store)

    # Lost leases

    def _drop_lost(self, refs: Sequence[LeaseRef]) -> None:
        self.apply_exchange()
        held = [ref for ref in refs if ref in self.jobs]
        found = self._store.lost_leases(held) if held else {}
        lost_leases = {ref: lease for ref, lease in found.items() if not lease.is_completed}
        if lost_leases:
            self._forget(self._pool.drop(lost_leases) + self.suspects.drop(lost_leases))
        for ref, lease in lost_leases.items():
            if ref in self.jobs:
                self._pool.cancel(self.jobs[ref], lease.cancel_reason or "the job was taken from this worker")

    # Releasing

    @property
    def surplus_at(self) -> float:
        """When to release surplus: at once if the runner of a claimed job has no slot, else at the next check."""
        if self._misplaced:
            return self._control.retry_at
        slots = self._options.concurrency
        waits = len(self.jobs) > slots and max(self._unfinished().values()) > slots
        due_at = 0.0 if waits or self._pool.lines.has_waiting else self._pool.unresponsive_at
        return max(due_at, self._next_surplus_check, self._control.retry_at)

    def release_surplus(self) -> None:
        """Release the jobs that would wait here too long, the last claimed first, so that another worker may run them.

        Those in a runner that does not respond wait too long in any case.
        Attempts that have finished but are not written yet count as progress. The last exchange is applied only if
        there are jobs to release: otherwise it waits for the next one.
        """
        now = time.monotonic()
        self._next_surplus_check = now + SURPLUS_CHECK_SECONDS
        taken = [attempt for attempt in self._pool.finished.copy() if isinstance(attempt, Attempt)]
        finished = [*self._pending.attempts, *taken, *self._buffer.attempts]
        surplus = self.claiming.surplus(self._unfinished(), _count_by_runner(finished), now)
        held_up = self._pool.withdraw_held_up(now) + self._pool.lines.withdraw(since=now - PATIENCE)
        if any(surplus.values()) or held_up or self._misplaced:
            self.apply_exchange()
            self._release_withdrawn(held_up + self._pool.withdraw_last(surplus))

    def release_unstarted(self) -> None:
        self.apply_exchange()
        self._release_withdrawn(self._pool.withdraw() + self.suspects.withdraw())

    def _release_withdrawn(self, withdrawn: list[ClaimedJob]) -> None:
        withdrawn, self._misplaced = withdrawn + self._misplaced, []
        self._release_unlocked(withdrawn)

    def _put_back(self, suspects: list[ClaimedJob]) -> None:
        self.apply_exchange()
        self._release_unlocked(suspects, later=True)

    def _release_unlocked(self, jobs: list[ClaimedJob], *, later: bool = False) -> None:
        if jobs:
            if locked := self._locked(jobs):
                self.orphan_check.expect(time.monotonic())
            self._forget([job for job in jobs if job.id in locked])
            self._release([job for job in jobs if job.id not in locked], later=later)

    def settle_last(self) -> None:
        self._pending.look_now()
        failures, now = 0, time.monotonic()
        deadline = now + LAST_OUTCOMES
        while failures < 2 and now < deadline and (self._pool.finished or self._pending.due_at <= now):
            if self.orphan_check.due_at <= now:
                with self._control.handling_errors(refused=self.orphan_check.refused):
                    self.orphan_check.run(now)
            self.exchange(Plan(0.0, settles=True))
            failures += self._control.is_broken  # a connection that broke is opened again
            now = time.monotonic()
        self._report_lost()

    def release_running(self) -> bool:
        """Settle finished attempts and release all other jobs, before the worker ends. Returns whether any still run.

        An attempt that was kept back is settled here, although its code runs until the process ends.
        Jobs whose rows are locked come first, and the release waits for them: their own transactions may be about to
        end. Another worker may start a released job at once, so this process must end soon after the last release.
        """
        self._pending.add(self._pool.take_kept_back())
        self.settle_last()
        with self._control.handling_errors():
            self.write_notes.write_all()
        running = list(self.jobs.values())
        locked = self._locked(running)
        running_released = 0
        finished = self._pending.refs()  # their rows may stay locked for long: not waited for
        for jobs in (
            [job for job in running if job.id in locked and job.ref not in finished],
            [job for job in running if job.id not in locked],
        ):
            self._release(jobs, interrupted=True)
            running_released += 0 if self._control.is_broken else len(jobs)
        if running_released:
            logs.running_released(self._name, running_released)
        return bool(running)

    def _locked(self, jobs: list[ClaimedJob]) -> set[int]:
        """The ids of the jobs whose rows another transaction has locked: they would fail the release of all others."""
        locked: set[int] = set()
        if jobs:
            with self._control.handling_errors():
                locked = self._store.locked(job.ref for job in jobs)
        return locked

    def _release(self, jobs: list[ClaimedJob], *, interrupted: bool = False, later: bool = False) -> None:
        """Release jobs. If the release fails, the jobs are orphans: the next orphan check finds them."""
        if jobs:
            with self._control.handling_errors():
                self._store.release((job.ref for job in jobs), interrupted=interrupted, later=later)
        self._forget(jobs)

    def _forget(self, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            self.jobs.pop(job.ref, None)
        self._pool.lines.gone(jobs)

    # After the connection broke

    def _connection_broke(self) -> None:
        """Start the jobs of the last result, and look for claims that were committed although their answer was lost."""
        self.apply_exchange()
        self.claiming.start_over()
        self.orphan_check.expect(time.monotonic())

    def _release_orphans(self) -> None:
        self.apply_exchange()
        orphans = self._store.release_orphans(self._id, known=[job.id for job in self.jobs.values()])
        if orphans:
            logs.orphans_released(self._name, len(orphans))


def _count_by_runner(attempts: list[Attempt]) -> Mapping[str, int]:
    """Number of these attempts, by runner. Does not look at the tasks if all are `def` tasks."""
    counts = dict.fromkeys(RUNNER_NAMES, 0)
    if registry.uses_threads_alone:
        return counts | {THREADS: len(attempts)}
    for task, count in Counter([attempt.job.task for attempt in attempts]).items():
        counts[registry.runner_of(task)] += count
    return counts


class ExchangeBuffer:
    """Used by the control loop's thread. `apply_exchange` returns whether the exchange found the queues empty."""

    def __init__(self, apply_exchange: Callable[[Exchange], bool]) -> None:
        self._apply_exchange = apply_exchange
        self._waiting: Exchange | None = None

    @property
    def is_empty(self) -> bool:
        return self._waiting is None

    @property
    def claimed(self) -> int:
        return self._waiting.answer.count_claimed() if self._waiting else 0

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts that are settled in the database, while the worker still counts their jobs as held."""
        return self._waiting.attempts if self._waiting else ()

    def put(self, exchange: Exchange) -> None:
        """Keep this result. The previous one must have been applied."""
        assert self._waiting is None  # noqa: S101 (a result that is overwritten would lose its jobs)
        self._waiting = exchange

    def apply(self) -> bool:
        """Apply the result, if one waits. Sends no statement. Returns whether that exchange found the queues empty."""
        if self._waiting is None:
            return False
        exchange, self._waiting = self._waiting, None
        return self._apply_exchange(exchange)
