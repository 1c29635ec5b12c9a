"""The runners: one for each way to run a task. A task names its runner.

A new runner is a class with the methods of `Runner`, an entry in `RUNNERS`, and its name in `tasks.registry`. The
attribute `runner` of `tasks.task.Task` says which tasks use it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..tasks.registry import EVENT_LOOP, THREADS
from ..values.records import ClaimedJob
from .event_loop import EventLoopRunner
from .executor import Executor, Finish
from .running_attempt import RunningAttempt
from .running_jobs import RunningJobs
from .threads import ThreadRunner


class Runner(Protocol):
    """Runs up to `concurrency` jobs at once, and calls `finish` with each attempt. For the control loop's thread."""

    @property
    def unfinished(self) -> int:
        """Number of jobs that run or wait here, except for stuck ones."""

    @property
    def is_used_up(self) -> bool:
        """Whether all slots of this runner are stuck."""

    @property
    def blocked_at(self) -> float:
        """The time from which code that runs on after its attempt counts as blocking other jobs, in monotonic seconds.

        Read it again at that time: it may have moved.
        """

    @property
    def silent_since(self) -> float:
        """Since when the runner has begun no job although a slot is free, in monotonic seconds; `NEVER`: none waits."""

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Run these jobs in this order, as slots become free."""

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started, in their order."""

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        """Take back the last `count` jobs that have not started, or fewer, in their order."""

    def give_up(self, running: RunningAttempt) -> None:
        """Give the slot of this stuck attempt to another one."""

    def ignore_blocked(self) -> None:
        """Report no blockage from here on: the process is being replaced."""

    def stop(self, deadline: float) -> None:
        """End the runner, which has no jobs left. Waits until the deadline at most, in monotonic seconds."""


Follow = Callable[[ClaimedJob], ClaimedJob | None]
"""Called in the thread of a job that has ended: the job that begins in its place, if any."""

MakeRunner = Callable[[Executor, int, RunningJobs, Sequence[int], Finish, Follow], Runner]

RUNNERS: dict[str, MakeRunner] = {THREADS: ThreadRunner, EVENT_LOOP: EventLoopRunner}

ENTRIES_PER_SLOT = 2 * len(RUNNERS)
"""Entries in `RunningJobs` for each of `concurrency` slots: per runner one, and a spare if the first is stuck."""


def entries_of_runners(concurrency: int) -> list[range]:
    each = ENTRIES_PER_SLOT * concurrency // len(RUNNERS)
    return [range(each * number, each * (number + 1)) for number in range(len(RUNNERS))]
