"""Where jobs run: each in the runner that its task names.

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
from .executor import Executor, Finished
from .interruption import stacks
from .runners import ENTRIES_PER_SLOT, RUNNERS, Runner, entries_of_runners
from .running_jobs import RunningJobs

CHANCE = 0.5
"""Seconds for which an event loop that seems to be blocked may show that it is not."""

END_TIME = 2.0
"""Seconds for which a runner is waited for at its end: its threads are daemons, and what they hang in is no job."""


class Pool:
    """The jobs that a worker runs, and those that wait for it. Used by the control loop's thread."""

    def __init__(
        self, executor: Executor, *, concurrency: int, wake: Callable[[], None], running_jobs: RunningJobs | None = None
    ) -> None:
        self._running_jobs = running_jobs or RunningJobs(ENTRIES_PER_SLOT * concurrency)
        self.finished: deque[Finished] = deque()
        self._executor = executor
        self._runners: dict[str, Runner] = {
            name: make_runner(executor, concurrency, self._running_jobs, entries, self._finish)
            for (name, make_runner), entries in zip(RUNNERS.items(), entries_of_runners(concurrency), strict=True)
        }
        self._wake = wake

    def submit(self, jobs: Iterable[ClaimedJob]) -> None:
        """Run these as soon as there is room, in this order."""
        parts: dict[str, list[ClaimedJob]] = {name: [] for name in self._runners}
        for job in jobs:
            parts[registry.runner_of(job.task)].append(job)
        for name, part in parts.items():
            if part:
                self._runners[name].submit(part)

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
        return taken

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
        self._executor.interrupter.cancel(job, reason)

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started."""
        return [job for runner in self._runners.values() for job in runner.withdraw()]

    def withdraw_last(self, counts: Mapping[str, int]) -> list[ClaimedJob]:
        """Take back so many of the jobs of each runner that have not started, the last ones."""
        return [job for name, count in counts.items() if count for job in self._runners[name].withdraw_last(count)]

    @property
    def next_deadline(self) -> float:
        """When to call `enforce_limits` and `find_blockage` next, in monotonic seconds."""
        return min(self._executor.interrupter.next_deadline, self._blocked_at())

    def enforce_limits(self) -> bool:
        """Interrupt the attempts whose time is over; whether one is stuck, which counts as finished then: failed."""
        stuck = self._executor.interrupter.enforce()
        for running, stack in stuck:
            attempt = self._executor.stuck(running, stack)
            if running.take_report():  # else it has come out while its retry policy was asked
                self.finished.append(attempt)
                logs.stuck(attempt, str(running.error), stack)
                self._runners[registry.runner_of(running.job.task)].give_up(running)
        return bool(stuck)

    @property
    def has_stuck(self) -> bool:
        """Whether an attempt that was given up still runs."""
        return bool(self._executor.interrupter.stuck())

    @property
    def is_used_up(self) -> bool:
        """Whether as many attempts are stuck as may run at once, in any runner."""
        return any(runner.is_used_up for runner in self._runners.values())

    def find_blockage(self) -> bool:
        """Whether code that no attempt waits for any more keeps others from running. True once."""
        deadline = time.monotonic() + CHANCE
        while self._blocked_at() <= time.monotonic():
            if deadline <= time.monotonic():
                for runner in self._runners.values():
                    runner.ignore_blocked()
                logs.blocked(self._executor.worker, stacks())
                return True
            time.sleep(CHANCE / 10)  # a call into C may have held up all threads, and this one is the first to go on
        return False

    def charge_only_stuck(self) -> None:
        """Have no attempt charged for what runs, however the process ends from here on, unless it is stuck."""
        self._running_jobs.charge_only([running.job.id for running in self._executor.interrupter.stuck()])

    def stop(self) -> None:
        """End the runners once they have nothing to run; returns when they are gone, or a moment later."""
        deadline = time.monotonic() + END_TIME
        for runner in self._runners.values():
            runner.stop(deadline)

    def unfinished(self, runner: str) -> int:
        """How many jobs run and wait in the runner of this name, but for those that are stuck."""
        return self._runners[runner].unfinished

    def _blocked_at(self) -> float:
        return min(runner.blocked_at for runner in self._runners.values())

    def _finish(self, finished: Finished) -> None:
        """Called by the runners' threads."""
        self.finished.append(finished)
        self._wake()
