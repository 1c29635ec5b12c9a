"""Where jobs run: threads for `def` tasks, one event loop for `async def` tasks.

Invariant: a job handed in comes out exactly once: as an attempt in `finished`, or from `withdraw`. Nothing here
touches the queue's tables. A thread that breaks says so, by an exception in `finished`, instead of leaving its jobs
waiting for ever.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from ..events import logs
from ..tasks.registry import registry
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .event_loop import EventLoopRunner
from .executor import Executor, Finished
from .interruption import stacks
from .running_jobs import ENTRIES_PER_PLACE, RunningJobs
from .threads import ThreadRunner

CHANCE = 0.5
"""Seconds for which an event loop that seems to be blocked may show that it is not."""

END_TIME = 2.0
"""Seconds for which a runner is waited for at its end: its threads are daemons, and what they hang in is no job."""


class Pool:
    """The jobs that a worker runs, and those that wait for it. Used by the control loop's thread."""

    def __init__(
        self, executor: Executor, *, concurrency: int, wake: Callable[[], None], started: RunningJobs | None = None
    ) -> None:
        self._started = started or RunningJobs(ENTRIES_PER_PLACE * concurrency)
        self.finished: deque[Finished] = deque()
        self._given_up: dict[LeaseRef, Attempt] = {}  # as stuck; they may come out nevertheless
        self._executor = executor
        self._threads = ThreadRunner(executor, concurrency, self._started, self._finish)
        self._event_loop = EventLoopRunner(executor, concurrency, self._started, self._finish)
        self._wake = wake

    def submit(self, jobs: Iterable[ClaimedJob]) -> None:
        """Run these as soon as there is room, in this order."""
        threaded: list[ClaimedJob] = []
        coroutines: list[ClaimedJob] = []
        for job in jobs:
            (coroutines if registry.is_async(job.task) else threaded).append(job)
        if threaded:
            self._threads.submit(threaded)
        if coroutines:
            self._event_loop.submit(coroutines)

    def take_finished(self) -> list[Attempt]:
        """The attempts finished since the last call. If a runner broke, the next call raises its exception."""
        taken: list[Attempt] = []
        while self.finished:
            finished = self.finished.popleft()
            if isinstance(finished, BaseException):
                if not taken:
                    raise finished
                self.finished.appendleft(finished)
                break
            taken.append(finished)
        return [attempt for attempt in taken if not self._was_given_up(attempt)] if self._given_up else taken

    def drop(self, refs: Mapping[LeaseRef, object]) -> list[ClaimedJob]:
        """Take back those of these jobs that have not started; the others keep their order."""
        dropped: list[ClaimedJob] = []
        kept: list[ClaimedJob] = []
        for job in self.withdraw():
            (dropped if job.ref in refs else kept).append(job)
        self.submit(kept)
        return dropped

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the attempt of this job, if it runs. One that has completed its job itself is left alone."""
        if not self._executor.has_completed(job.ref):
            self._executor.interrupter.cancel(job, reason)

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started."""
        return self._threads.withdraw() + self._event_loop.withdraw()

    def withdraw_last(self, *, threads: int, coroutines: int) -> list[ClaimedJob]:
        """Take back so many of the jobs of each kind that have not started, the last ones."""
        withdrawn = self._threads.withdraw_last(threads) if threads else []
        return withdrawn + (self._event_loop.withdraw_last(coroutines) if coroutines else [])

    @property
    def coroutines(self) -> int:
        """How many jobs of `async def` tasks run and wait here."""
        return self._event_loop.unfinished

    def count_coroutines(self, attempts: Iterable[Attempt]) -> int:
        """How many of these were of `async def` tasks. Costs nothing where no such task has run."""
        return sum(registry.is_async(attempt.job.task) for attempt in attempts) if self._event_loop.is_used else 0

    @property
    def next_deadline(self) -> float:
        """When to call `enforce_limits` and `is_blocked` next, in monotonic seconds."""
        return min(self._executor.interrupter.next_deadline, self._event_loop.blocked_at)

    def enforce_limits(self) -> bool:
        """Interrupt the attempts whose time is over; whether one is stuck, which counts as finished then: failed."""
        stuck = self._executor.interrupter.enforce()
        for interruption, stack in stuck:
            attempt = self._executor.stuck(interruption, stack)
            if not self._has_come_out(attempt.job):  # while its retry policy was asked
                ref = attempt.job.ref
                self._given_up[ref] = attempt
                self.finished.append(attempt)
                logs.stuck(attempt, str(interruption.error), stack)
                if not self._threads.give_up(interruption.thread):
                    self._event_loop.give_up_attempt(ref)
        return bool(stuck)

    @property
    def has_stuck(self) -> bool:
        """Whether an attempt that was given up still runs."""
        return bool(self._given_up)

    @property
    def is_used_up(self) -> bool:
        """Whether as many attempts are stuck as may run at once, of either kind."""
        return bool(self._given_up) and (self._threads.is_used_up or self._event_loop.is_used_up)

    def is_blocked(self) -> bool:
        """Whether code that no attempt waits for any more keeps others from running. True once."""
        deadline = time.monotonic() + CHANCE
        while self._event_loop.blocked_at <= time.monotonic():
            if deadline <= time.monotonic():
                self._event_loop.give_up()
                logs.blocked(self._executor.worker, stacks())
                return True
            time.sleep(CHANCE / 10)  # a call into C may have held up all threads, and this one is the first to go on
        return False

    def charge_nothing(self) -> None:
        """Have no attempt charged for what runs, however the process ends from here on, unless it is stuck."""
        self._started.charge_nothing(but=[job_id for job_id, _ in self._given_up])

    def stop(self) -> None:
        """End the runners once they have nothing to run; returns when they are gone, or a moment later."""
        deadline = time.monotonic() + END_TIME
        self._threads.stop(deadline)
        self._event_loop.stop(deadline)

    def _has_come_out(self, job: ClaimedJob) -> bool:
        return any(isinstance(finished, Attempt) and finished.job is job for finished in self.finished.copy())

    def _was_given_up(self, attempt: Attempt) -> bool:
        """Whether it has ended after all."""
        ref = attempt.job.ref
        if self._given_up.get(ref, attempt) is attempt:
            return False
        del self._given_up[ref]
        return True

    def _finish(self, finished: Finished) -> None:
        """Called by the runners' threads."""
        self.finished.append(finished)
        self._wake()
