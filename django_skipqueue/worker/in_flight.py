"""The jobs that one worker holds: from the claim of a job until the job is settled or released.

`ExchangeService` claims and settles the jobs, and the `Pool` runs them. A job stays in `InFlightJobs.jobs` until the
worker has settled or released it, or has found that its lease is no longer valid.

All code that drops or releases jobs first applies the result of the last exchange. Code that only counts or reads the
jobs may run earlier. `room` adds the number of jobs that the result has claimed. The check for surplus jobs adds the
attempts that the result has settled. The check for cancelled jobs sees the new jobs in its next run.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ..events import logs
from ..jobs.registry import RUNNER_NAMES, THREADS, registry
from ..queue.store import Store
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .attempts.pool import Pool
from .claiming import LONGEST_WAIT_AHEAD, ClaimPolicy, Free, Plan
from .control_connection import ControlConnection
from .dispatcher import EventDispatcher, settle_services
from .exchange import ExchangeService
from .in_exchange import InExchange
from .notes import WriteNotes
from .options import WorkerOptions
from .protocol import SharedCounts
from .watchers import CancelCheck, OrphanCheck, Suspects

SURPLUS_CHECK_SECONDS = 0.1
"""Seconds between two checks for jobs that have to wait too long."""

LAST_OUTCOMES = 10.0
"""For how many seconds a worker still writes outcomes after its shutdown timeout."""


class InFlightJobs:
    """Holds the jobs of a worker: see `JobHolder`. Used only by the control loop's thread."""

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
        shared: SharedCounts,
        in_exchange: InExchange,
        may_claim: Callable[[float], bool],
        exchanged: Callable[[bool], object],
    ) -> None:
        """exchanged: called after each exchange, with whether it found all queues empty."""
        self.jobs: dict[LeaseRef, ClaimedJob] = {}
        self.claiming = ClaimPolicy(options, shared, holds=self._holds)
        self.exchanges = ExchangeService(
            self,
            self.claiming,
            id=id,
            store=store,
            control=control,
            dispatcher=dispatcher,
            shared=shared,
            in_exchange=in_exchange,
            settle_services=settle_services(store, is_idle=lambda: not self.jobs),
            write_notes=WriteNotes(store, lambda: pool.attempts),
            exchanged=exchanged,
        )
        self._shared = shared
        self._id = id
        self._name = name
        self._options = options
        self.store = store
        self._control = control
        self._pool = pool
        self._dispatcher = dispatcher
        self.pending = self.exchanges.pending
        self.may_claim = may_claim
        self.cancel_check = CancelCheck(self.jobs.keys, self._drop_lost)
        self.orphan_check = OrphanCheck(options.worker_timeout, self._release_orphans)
        self.suspects = Suspects(shared, self._put_back)
        self._claimed_without_room: list[ClaimedJob] = []  # their runner was full, so they will be released
        self._next_surplus_check = 0.0
        self._is_stopping = False
        control.on_broken = self._handle_broken_connection

    def room(self, now: float) -> int:
        """Return how many more jobs to claim, within the limit of `--max-jobs`.

        A finished job does not take a place, because the exchange that claims new jobs also settles the finished job.
        """
        if not self.may_claim(now) or self._dispatcher.is_full or self.pending.has_more:
            return 0
        not_taken = self.exchanges.buffer.claimed
        room = self.claiming.room(self._unfinished(), not_taken, now, unresponsive=self._pool.unresponsive(now))
        if self._options.max_jobs is None:
            return room
        return max(0, min(room, self._options.max_jobs - self.exchanges.jobs_done - len(self.jobs) - not_taken))

    def offer(self, room: int) -> None:
        """Show the supervisor how many more jobs could begin at once, and how many jobs run."""
        slots, unfinished = self._options.concurrency, self._unfinished().values()
        free_slots = 0 if self._pool.unresponsive(time.monotonic()) else max(slots - max(unfinished), 0)
        running = sum(min(jobs, slots) for jobs in unfinished)
        self._shared.offer(slots=min(free_slots, room), room=room, claimed=self.exchanges.jobs_claimed, running=running)

    def _holds(self, is_in_queues: Callable[[str], bool]) -> int:
        """Return the number of unfinished jobs in the queues for whose names `is_in_queues` returns true."""
        ended_refs = self.pending.refs().union(self._pool.kept_back)
        return sum(is_in_queues(job.queue_name) for ref, job in self.jobs.items() if ref not in ended_refs)

    def _unfinished(self) -> dict[str, int]:
        return {runner: self._pool.unfinished(runner) for runner in RUNNER_NAMES}

    @property
    def has_open_jobs(self) -> bool:
        """Whether the worker has jobs, apart from jobs with stuck attempts that keep their permits."""
        return len(self.jobs) > len(self._pool.kept_back)

    # Settle and claim, in one round trip

    def has_finished(self, now: float) -> bool:
        """Whether an attempt has finished whose outcome is not written yet."""
        return bool(self._pool.finished)

    def take_finished(self) -> list[Attempt]:
        """Return the attempts to settle. Jobs whose attempts have ended because the worker stops are released here."""
        finished = self._pool.take_finished()
        if self._is_stopping and (released := [attempt for attempt in finished if attempt.outcome.is_release]):
            with self._control.handling_errors():
                self.exchanges.write_notes.write_last(released)
            self._release_if_unlocked([attempt.job for attempt in released], interrupted=True)
            finished = [attempt for attempt in finished if not attempt.outcome.is_release]
        return finished

    def settled(self, attempts: list[Attempt]) -> None:
        """Forget these jobs, because their outcomes are written."""
        self._forget([attempt.job for attempt in attempts])
        now = time.monotonic()
        for runner, count in _count_by_runner(attempts).items():
            self.claiming.capacities[runner].finished(count, now)

    def take_ahead(self, claimed: list[ClaimedJob]) -> None:
        """Give the jobs to the pool. A part has claimed them ahead, and decides when each of them begins."""
        self.jobs.update((job.ref, job) for job in claimed)
        self._pool.begin_order.claimed(claimed, ahead=True)
        self._pool.submit(claimed)

    def take(self, claimed: list[ClaimedJob], free: Free) -> None:
        """Give the jobs to their runners. Jobs whose runner has no room are released later. Suspect jobs run alone."""
        self.jobs.update((job.ref, job) for job in claimed)
        if self._options.concurrency > 1 and any(job.is_suspect for job in claimed):
            self.suspects.take([job for job in claimed if job.is_suspect], time.monotonic())
            claimed = [job for job in claimed if not job.is_suspect]
        self._pool.begin_order.claimed(claimed)  # without suspects, which take their permits to another process
        tasks = {job.task for job in claimed}
        if tasks_without_room := {task for task in tasks if not free[registry.runner_of(task)]}:
            self._claimed_without_room += [job for job in claimed if job.task in tasks_without_room]
            claimed = [job for job in claimed if job.task not in tasks_without_room]
        self._pool.submit(claimed)

    def take_over(self, suspect: ClaimedJob) -> None:
        """Run a suspect job that this process has taken over from another worker."""
        self.jobs[suspect.ref] = suspect
        self._pool.begin_order.claimed([suspect])
        self._pool.submit([suspect])

    # Lost leases

    def _drop_lost(self, refs: Sequence[LeaseRef]) -> None:
        """Forget or cancel the jobs that this worker no longer holds. Checks only jobs with these leases."""
        self.exchanges.apply()
        held_refs = [ref for ref in refs if ref in self.jobs]
        ended_leases = self.store.lost_leases(held_refs) if held_refs else {}
        lost_leases = {ref: lease for ref, lease in ended_leases.items() if not lease.is_completed}
        if lost_leases:
            self._forget(self._pool.drop(lost_leases) + self.suspects.drop(lost_leases))
        for ref, lease in lost_leases.items():
            if ref in self.jobs:
                self._pool.cancel(self.jobs[ref], lease.cancel_reason or "the job was taken from this worker")

    # Releasing

    @property
    def surplus_at(self) -> float:
        """When to release surplus jobs. If the runner of a claimed job had no room, this is at once."""
        if self._claimed_without_room:
            return self._control.retry_at
        slots = self._options.concurrency
        jobs_wait = len(self.jobs) > slots and max(self._unfinished().values()) > slots
        due_at = 0.0 if jobs_wait or self._pool.begin_order.has_waiting else self._pool.unresponsive_at
        return max(due_at, self._next_surplus_check, self._control.retry_at)

    def release_surplus(self) -> None:
        """Release the last claimed jobs, if they would have to wait too long, so that another worker may run them.

        Also release all jobs in a runner that does not respond. Finished attempts count as progress even if they are
        not written yet. The result of the last exchange is applied only if there are jobs to release.
        """
        now = time.monotonic()
        self._next_surplus_check = now + SURPLUS_CHECK_SECONDS
        finished_in_pool = [attempt for attempt in self._pool.finished.copy() if isinstance(attempt, Attempt)]
        finished = [*self.pending.attempts, *finished_in_pool, *self.exchanges.buffer.attempts]
        surplus = self.claiming.surplus(self._unfinished(), _count_by_runner(finished), now)
        waiting_too_long = self._pool.begin_order.withdraw(since=now - LONGEST_WAIT_AHEAD)
        delayed_jobs = self._pool.withdraw_held_up(now) + waiting_too_long
        if any(surplus.values()) or delayed_jobs or self._claimed_without_room:
            self.exchanges.apply()
            self._release_withdrawn(delayed_jobs + self._pool.withdraw_last(surplus))

    def begin_to_stop(self) -> None:
        """Release all jobs that have not started, and make the attempts end at their next boundary."""
        self._is_stopping = True
        self._pool.stop_at_boundaries()
        self.exchanges.apply()
        self._release_withdrawn(self._pool.withdraw() + self.suspects.withdraw())

    def _release_withdrawn(self, withdrawn: list[ClaimedJob]) -> None:
        """Release jobs that the pool gave back, and jobs that were claimed although their runner was full."""
        withdrawn, self._claimed_without_room = withdrawn + self._claimed_without_room, []
        self._release_if_unlocked(withdrawn)

    def _put_back(self, suspects: list[ClaimedJob]) -> None:
        """Release suspect jobs that no process has taken over. They become due again after a delay."""
        self.exchanges.apply()
        self._release_if_unlocked(suspects, later=True)

    def _release_if_unlocked(self, jobs: list[ClaimedJob], *, interrupted: bool = False, later: bool = False) -> None:
        """Release the jobs whose rows are not locked. The orphan check releases the jobs with locked rows."""
        if jobs:
            if locked := self._locked(jobs):
                self.orphan_check.expect(time.monotonic())
            self._forget([job for job in jobs if job.id in locked])
            self._release([job for job in jobs if job.id not in locked], interrupted=interrupted, later=later)

    def settle_last(self) -> None:
        """Write the remaining outcomes before the worker ends, unless this fails twice or takes too long."""
        self.pending.check_now()
        failures, now = 0, time.monotonic()
        deadline = now + LAST_OUTCOMES
        while failures < 2 and now < deadline and (self._pool.finished or self.pending.due_at <= now):
            if self.orphan_check.due_at <= now:
                with self._control.handling_errors(refused=self.orphan_check.refused):
                    self.orphan_check.run(now)
            self.exchanges.exchange(Plan(0.0, settles=True))
            failures += self._control.is_broken  # the next exchange opens a broken connection again
            now = time.monotonic()
        self.exchanges.report_lost()

    def release_running(self) -> bool:
        """Settle finished attempts and release all other jobs, before the worker ends. Returns whether jobs still run.

        Stuck attempts that were kept back are settled now, although their code runs until the process ends. Jobs whose
        rows are locked are released first. This may wait for the locks, because the transactions of these jobs may be
        about to end. All other jobs are released last, because another worker may start a released job at once, so
        this process must end soon afterwards.
        """
        self.pending.add(self._pool.take_kept_back())
        self.settle_last()
        with self._control.handling_errors():
            self.exchanges.write_notes.write_all()
        for attempt in list(self._pool.attempts):
            for part in attempt.parts:
                with self._control.handling_errors():
                    part.released(self.store)
        running = list(self.jobs.values())
        ids_with_locked_row = self._locked(running)
        running_released = 0
        unwritten_refs = self.pending.refs()
        # A release does not wait for the locked row of a finished attempt, which may stay locked for long.
        for jobs in (
            [job for job in running if job.id in ids_with_locked_row and job.ref not in unwritten_refs],
            [job for job in running if job.id not in ids_with_locked_row],
        ):
            self._release(jobs, interrupted=True)
            running_released += 0 if self._control.is_broken else len(jobs)
        if running_released:
            logs.running_released(self._name, running_released)
        return bool(running)

    def _locked(self, jobs: list[ClaimedJob]) -> set[int]:
        """Return the ids of the jobs whose rows another transaction has locked. A locked row makes a release fail."""
        locked: set[int] = set()
        if jobs:
            with self._control.handling_errors():
                locked = self.store.locked(job.ref for job in jobs)
        return locked

    def _release(self, jobs: list[ClaimedJob], *, interrupted: bool = False, later: bool = False) -> None:
        """Release jobs. If this fails, the next orphan check finds the jobs and releases them."""
        if jobs:
            with self._control.handling_errors():
                self.store.release((job.ref for job in jobs), interrupted=interrupted, later=later)
        self._forget(jobs)

    def _forget(self, jobs: list[ClaimedJob]) -> None:
        for job in jobs:
            self.jobs.pop(job.ref, None)
        self._pool.begin_order.gone(jobs)

    # After the connection broke

    def _handle_broken_connection(self) -> None:
        """Start the jobs of the last result. The orphan check then looks for jobs whose claim's result was lost."""
        self.exchanges.apply()
        self.claiming.start_over()
        self.orphan_check.expect(time.monotonic())

    def _release_orphans(self) -> None:
        self.exchanges.apply()
        orphans = self.store.release_orphans(self._id, known=[job.id for job in self.jobs.values()])
        if orphans:
            logs.orphans_released(self._name, len(orphans))


def _count_by_runner(attempts: list[Attempt]) -> Mapping[str, int]:
    """Return the number of attempts by runner. This is fast if all tasks are `def` tasks."""
    counts = dict.fromkeys(RUNNER_NAMES, 0)
    if registry.uses_threads_alone:
        return counts | {THREADS: len(attempts)}
    for task, count in Counter([attempt.job.task for attempt in attempts]).items():
        counts[registry.runner_of(task)] += count
    return counts
