"""One worker process: a control loop that settles what finished and claims what fits, in one round trip.

Invariant: no code of the project runs in this thread, so nothing that a task does can keep it from settling, from
stopping, or from giving jobs back. A job in `_held` is this worker's until its outcome is written or it is released.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from django.dispatch import Signal

from .. import logs
from ..managers.batches import Answer
from ..models import Job
from ..models import Worker as WorkerRow
from ..outcomes import Outcome
from ..records import Attempt, ClaimedJob, Lease, Position
from ..signals import (
    job_cancelled,
    job_completed,
    job_discarded,
    job_failed,
    job_retrying,
    lease_lost,
    worker_started,
    worker_stopped,
)
from .announcer import Announcer
from .claiming import Claiming
from .control import ControlConnection
from .executor import Executor
from .limits import Limits
from .options import WorkerOptions
from .pool import Pool
from .protocol import ENDED_WELL, RECYCLED, STOP_NOW, STUCK
from .recycling import Recycling
from .revocations import Revocations
from .started import StartedJobs
from .strays import StrayChecks
from .wakeup import Wakeup

if TYPE_CHECKING:
    from ..managers import JobQuerySet

IDLE_HOLD = 0.5
"""Seconds without a finished job after which the jobs that have not started go back to their queues."""

LOCKED_DELAY = 0.05
"""Seconds before another look at jobs that are runnable and were not claimed, for --drain."""

LARGE_ANSWER = 100
"""A claim that brought all it asked for, and as many jobs as this, waits until the next is on its way. Others are begun
at once."""

EVENT_BACKLOG = 10_000
"""Events that may wait for the project's receivers before the worker claims no more."""

EVENTS = {
    "completed": job_completed,
    "scheduled": job_retrying,
    "failed": job_failed,
    "discarded": job_discarded,
}


class Exchanged(NamedTuple):
    """A round trip that is over."""

    answer: Answer
    attempts: list[Attempt]
    """Whose outcomes were sent."""
    room: int
    """How many jobs were asked for."""
    after: Mapping[str, Position]
    """Where each queue was looked at."""
    started: float
    ended: float


class Worker:
    """Runs in the main thread of a process of its own, with `lifeline`, a pipe from its supervisor."""

    def __init__(
        self, options: WorkerOptions, *, id: str, name: str, lifeline: int, started: StartedJobs | None = None
    ) -> None:
        self.id = id
        self.name = name
        self.options = options
        self.jobs_done = 0
        self._lifeline: int | None = lifeline
        self._wakeup = Wakeup()
        self._control = ControlConnection(options.database, who=f"worker {name}")
        executor = Executor(worker=name, database=options.database, limits=Limits(self._wakeup.call))
        self._pool = Pool(executor, concurrency=options.concurrency, wakeup=self._wakeup, started=started)
        self._announcer = Announcer()
        self._claiming = Claiming(options)
        self._held: dict[Lease, ClaimedJob] = {}
        self._unsettled: list[Attempt] = []
        self._exchanged: Exchanged | None = None  # while what it has brought is still to be taken up
        self._lost: list[Attempt] = []  # outcomes that were not written, of which nobody has been told yet
        self._revocations = Revocations()
        self._stray_checks = StrayChecks(options.lease)
        self._recycling = Recycling(options)
        self._last_progress = 0.0
        self._stopping = False
        self._stop_by = float("inf")
        self._exit_code = ENDED_WELL

    def run(self) -> int:
        """Work until told to stop; the exit code of the process."""
        self._wakeup.on_signals(lambda _: self._stop(), (signal.SIGTERM, signal.SIGINT))
        self._announce_start()
        try:
            while not self._stopping:
                self._turn()
                self._wait()
            self._shut_down()
        except Exception as error:
            logs.part_died(self.name, error)
            return 1
        return self._exit_code

    def _announce_start(self) -> None:
        queue_names = list(self.options.queue_names)
        concurrency = self.options.concurrency
        self._announcer.event(
            worker_started, self.name, worker_id=self.id, queue_names=queue_names, concurrency=concurrency
        )

    # One turn of the loop

    def _turn(self) -> None:
        self._enforce_limits()
        now = time.monotonic()
        if not self._pool.finished:
            self._take_up()
        self._let_go_of_revoked(now)
        self._recycle_if_due(now)
        room = self._room(now)
        look = room > 0 and self._claiming.next_look <= now
        if self._pool.finished or self._unsettled or look or self._stray_checks.next_at <= now:
            self._exchange(room)
        elif self._held and now - self._last_progress > IDLE_HOLD:
            self._give_back_unstarted()

    def _enforce_limits(self) -> None:
        """Interrupt attempts whose time is over. One that is stuck keeps its thread: the process is replaced."""
        if self._pool.enforce_limits():
            self._exit_code = STUCK
            self._stop()

    def _recycle_if_due(self, now: float) -> None:
        """End well and be replaced, once the process has done its jobs or has grown too large."""
        reason = self._recycling.reason(self.jobs_done, now)
        if reason and not self._stopping:
            logs.recycling(self.name, reason)
            self._exit_code = RECYCLED
            self._stop(float("inf"))  # nobody waits for it, so what runs may run to its end

    def _room(self, now: float) -> int:
        """How many more jobs to claim, within what `--max-jobs` leaves.

        What has finished takes no room: it is settled in the round trip that claims.
        """
        if self._stopping or self._announcer.backlog > EVENT_BACKLOG:
            return 0
        held, finished = len(self._held), len(self._unsettled) + len(self._pool.finished)
        if self._exchanged:
            held += self._exchanged.answer.count_claimed()
            finished += len(self._exchanged.attempts)
        room = self._claiming.room(held - finished, now)
        if self.options.max_jobs is None:
            return room
        return max(0, min(room, self.options.max_jobs - self.jobs_done - held))

    def _exchange(self, room: int) -> None:
        """The round trip: settle what finished, and claim up to `room` jobs.

        What the one before has brought is taken up while the database works. Of two that follow each other closely, the
        first is taken up while the second is on its way: a quarter more jobs a second where they take no time.
        """
        self._unsettled += self._pool.take_finished()
        now = time.monotonic()
        with self._control.attempt():
            if self.options.listen:
                self._control.listen()
            self._release_strays(now)
            if room:
                self._claiming.choose_queues(self._jobs.queues_with_jobs, time.monotonic)
            after = self._claiming.after(now) if room else {}
            answer = self._jobs.exchange(
                [attempt.settlement for attempt in self._unsettled if not attempt.is_written],
                queue_names=self._claiming.queue_names,
                limit=room,
                worker_id=self.id,
                after=after,
                meanwhile=self._take_up,
            )
            self._exchanged = Exchanged(answer, self._unsettled, room, after, now, time.monotonic())
            self._unsettled = []
            if answer.count_claimed() < max(room, LARGE_ANSWER):
                empty = self._take_up()
                if empty and self.options.drain and not self._held:
                    self._stop_if_drained()
            self._hear()
        if self._control.retry_in:
            self._expect_strays(now)
        self._tell_lost()
        if self.options.max_jobs is not None and self.jobs_done >= self.options.max_jobs:
            self._stop()

    def _take_up(self) -> bool:
        """Take up what the last exchange has brought, if that is still to be done; whether it found the queues empty.

        Asks nothing of the database.
        """
        if self._exchanged is None:
            return False
        exchanged, self._exchanged = self._exchanged, None
        self._written(exchanged.attempts, exchanged.answer.settled())
        claimed = exchanged.answer.claimed()
        self._take(claimed)
        return exchanged.room > 0 and self._claiming.claimed(
            claimed, room=exchanged.room, after=exchanged.after, started=exchanged.started, ended=exchanged.ended
        )

    def _written(self, attempts: list[Attempt], settled: set[Lease]) -> None:
        """Note what the database says of the outcomes that were sent, and tell the world."""
        if not attempts:
            return
        outcomes: defaultdict[Signal, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            lease = (attempt.job.id, attempt.job.lease)
            event = EVENTS[attempt.outcome.status] if attempt.is_written or lease in settled else lease_lost
            outcomes[event].append(attempt)
            self._held.pop(lease, None)
        self.jobs_done += len(attempts)
        self._last_progress = time.monotonic()
        self._claiming.look_ahead.finished(len(attempts), self._last_progress)
        self._lost += outcomes.pop(lease_lost, [])
        self._announcer.outcomes(outcomes)

    def _tell_lost(self) -> None:
        """Say of outcomes that were not written whether that was wanted: their jobs were cancelled."""
        if not self._lost or self._control.retry_in:
            return
        reasons: dict[Lease, str | None] = {}
        with self._control.attempt():
            reasons = self._jobs.revoked((attempt.job.id, attempt.job.lease) for attempt in self._lost)
        told: defaultdict[Signal, list[Attempt]] = defaultdict(list)
        for attempt in self._lost:
            reason = reasons.get((attempt.job.id, attempt.job.lease))
            if reason is None:
                told[lease_lost].append(attempt)
            else:
                told[job_cancelled].append(attempt._replace(outcome=Outcome("discarded", last_error=reason)))
        self._lost = []
        self._announcer.outcomes(told)

    def _let_go_of_revoked(self, now: float) -> None:
        """Drop and interrupt the jobs that were cancelled, or taken from us by a recovery."""
        if not self._held or now < self._revocations.next_look:
            return
        self._take_up()
        leases = self._revocations.due(self._held, now)
        if not leases:
            return
        revoked: dict[Lease, str | None] = {}
        with self._control.attempt():
            revoked = self._jobs.revoked(leases)
        if self._control.retry_in:
            self._expect_strays(now)
        if revoked:
            for job in self._pool.drop(revoked):
                del self._held[job.id, job.lease]
        for lease, reason in revoked.items():
            if lease in self._held:
                self._pool.cancel(self._held[lease], reason or "the job was taken from this worker")

    def _take(self, claimed: list[ClaimedJob]) -> None:
        if claimed:
            if not self._held:
                self._last_progress = time.monotonic()
            self._held.update(((job.id, job.lease), job) for job in claimed)
            self._pool.submit(claimed)

    def _stop_if_drained(self) -> None:
        """For --drain: stop once nothing is queued or due, either. What others hold is theirs."""
        if self._something_runnable():
            # Somebody else has it locked this moment: a supervisor that promotes it, a worker that gives it back.
            self._claiming.look_at(time.monotonic() + LOCKED_DELAY)
        else:
            self._stop()

    def _something_runnable(self) -> bool:
        """Whether a job is due or queued that this worker would serve, even if a claim did not get it."""
        if self._jobs.promote():
            return True
        next_due = self._jobs.next_due()
        if next_due is not None and next_due <= 0:
            return True
        waiting = self._jobs.queues_with_jobs()
        return any(name in waiting for name in self.options.queue_names or waiting)

    def _hear(self) -> None:
        """Read the notifications that have come, and look for jobs at once where they concern us."""
        self._claiming.heard(self._control.notified())

    @property
    def _jobs(self) -> "JobQuerySet":
        return Job.objects.using(self.options.database)

    # Waiting

    def _wait(self) -> None:
        """Sleep until there is an outcome, a notification, a word from the supervisor, or time to look."""
        now = time.monotonic()
        until = min(now + self.options.poll_interval, self._stray_checks.next_at) if self._exchanged is None else now
        if self._room(now):
            until = min(until, self._claiming.next_look)
        if self._held:
            until = min(until, now + IDLE_HOLD, self._pool.next_deadline, self._revocations.next_look)
        if not self._stopping:
            self._sleep(until - now)

    def _sleep(self, timeout: float) -> None:
        """Sleep up to `timeout` seconds; while the database cannot be used, until it is tried again."""
        broken = self._control.retry_in > 0
        if broken:
            timeout = min(self._control.retry_in, self._stop_by - time.monotonic())
        socket = self._control.fileno()
        ready = self._wakeup.wait(
            timeout,
            unless=lambda: not broken and self._pool.finished,
            files=[file for file in (self._lifeline, socket) if file is not None],
        )
        if self._lifeline in ready:
            self._obey()
        if socket in ready:
            with self._control.attempt():
                self._hear()
            if self._control.retry_in:
                self._claiming.next_look = 0.0  # the connection broke while idle: open another one now

    def _obey(self) -> None:
        """Do what the supervisor says; where it is gone, be done before others take our jobs for lost."""
        assert self._lifeline is not None  # noqa: S101 (for the type checker: only a readable file is obeyed)
        command = os.read(self._lifeline, 16)
        if not command:
            timeout = min(self.options.shutdown_timeout, self.options.lease / 2)
            if not self._stopping:
                logs.supervisor_gone(self.name, timeout)
            self._lifeline = None
            self._stop(timeout)
        elif STOP_NOW in command:
            self._stop(0)
        else:
            self._stop()

    # Stopping

    def _stop(self, timeout: float | None = None) -> None:
        """Only sets flags: signal handlers call it too. A later call may shorten the time left, never prolong it."""
        self._stopping = True
        wait = self.options.shutdown_timeout if timeout is None else timeout
        self._stop_by = min(self._stop_by, time.monotonic() + wait)

    def _shut_down(self) -> None:
        """Release what has not started, finish what runs and settle it; after the time given, release that as well."""
        self._take_up()
        self._give_back_unstarted()
        while self._held and (left := self._stop_by - time.monotonic()) > 0:
            if self._pool.finished or self._unsettled:
                self._exchange(0)
            self._enforce_limits()
            self._let_go_of_revoked(time.monotonic())
            if self._held:
                until = min(self._pool.next_deadline, self._revocations.next_look)
                self._sleep(min(left, until - time.monotonic()))
        still_running = self._give_back_running()
        with self._control.attempt():
            WorkerRow.objects.using(self.options.database).deregister([self.id])
        self._announcer.event(worker_stopped, self.name, worker_id=self.id, jobs_done=self.jobs_done)
        self._announcer.stop(timeout=5)
        if not still_running and self._exit_code != STUCK:
            self._pool.stop()
        self._control.close()

    def _give_back_unstarted(self) -> None:
        if withdrawn := self._pool.withdraw():
            self._release(withdrawn)

    def _give_back_running(self) -> bool:
        """When the time is over: settle what is finished, release the rest; whether anything still runs."""
        if self._pool.finished or self._unsettled:
            self._exchange(0)
        running = list(self._held.values())
        if running:
            self._release(running)
            logs.given_back(self.name, len(running))
        return bool(running)

    def _release(self, jobs: list[ClaimedJob]) -> None:
        """Give jobs back. Those that cannot be given back now are strays then."""
        with self._control.attempt():
            self._jobs.release((job.id, job.lease) for job in jobs)
        for job in jobs:
            self._held.pop((job.id, job.lease), None)
        if self._control.retry_in:
            self._expect_strays(time.monotonic())

    # After the connection broke

    def _expect_strays(self, now: float) -> None:
        """A claim may have been committed and never heard of."""
        self._claiming.start_over()
        self._stray_checks.expect(now)

    def _release_strays(self, now: float) -> None:
        if self._stray_checks.next_at <= now:
            self._take_up()
            strays = self._jobs.release_strays(self.id, known=[job.id for job in self._held.values()])
            self._stray_checks.done()
            if strays:
                logs.strays_released(self.name, len(strays))
