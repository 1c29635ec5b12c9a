"""The runners: one for each way to run a task. A task says which is its own, by name.

A new one is a class with these methods, and a line in `RUNNERS`.
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
    """Runs up to so many jobs at once. Used by the control loop's thread; it reports each attempt to `finish`."""

    @property
    def unfinished(self) -> int:
        """How many jobs run and wait here, but for those that are stuck."""

    @property
    def is_used_up(self) -> bool:
        """Whether as many attempts are stuck as may run at once."""

    @property
    def blocked_at(self) -> float:
        """When to hold that code which belongs to no attempt any more keeps others from running, in monotonic seconds.

        It may be later when that time has come.
        """

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Run these as soon as there is room, in this order."""

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started, in their order."""

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        """Take back up to so many jobs that have not started, the last ones."""

    def give_up(self, running: RunningAttempt) -> None:
        """Have another attempt take the place of this one, which is stuck."""

    def ignore_blocked(self) -> None:
        """Find nothing blocked from here on: the process is being replaced."""

    def stop(self, deadline: float) -> None:
        """End once nothing is left to run; returns then, or at this time, in monotonic seconds."""


MakeRunner = Callable[[Executor, int, RunningJobs, Sequence[int], Finish], Runner]

RUNNERS: dict[str, MakeRunner] = {THREADS: ThreadRunner, EVENT_LOOP: EventLoopRunner}

ENTRIES_PER_SLOT = 2 * len(RUNNERS)
"""In `RunningJobs`, for each job that may run at once: one in each runner, and one that replaces it if it is stuck."""


def entries_of_runners(concurrency: int) -> list[range]:
    """The numbers of the entries in `RunningJobs` that each runner has."""
    each = ENTRIES_PER_SLOT * concurrency // len(RUNNERS)
    return [range(each * number, each * (number + 1)) for number in range(len(RUNNERS))]
