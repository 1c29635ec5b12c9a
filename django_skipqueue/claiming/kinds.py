"""Which runners the jobs of each queue need, by the results of the last claims.

The kind of a job is the runner of its task. A worker learns the kind only after the claim. So while a runner is full,
the worker skips the queues whose last jobs were for that runner, and tries them again every second. A claimed job whose
runner has no room is released. Within a queue, jobs of all kinds stay in their order.

Pure: callers pass the time, in monotonic seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..tasks.registry import registry
from ..values.records import ClaimedJob

KNOWN_FOR = 1.0
"""Seconds for which the jobs of a queue are assumed to need the same runners as those last claimed from it."""

MOST_QUEUES = 10_000
"""Queues that are remembered."""

Free = Mapping[str, int]
"""Room for more jobs, by the name of the runner."""


class Need(NamedTuple):
    runners: set[str]
    until: float
    """When this is forgotten, in monotonic seconds."""

    def room(self, free: Free) -> int:
        return min(free[runner] for runner in self.runners)


class Kinds:
    """For each queue, the runners that its last claimed jobs needed. Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, Need] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """How many jobs to claim from these queues in one statement: whichever runners they need, there is room."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free.values()))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        return names if all(free.values()) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note the jobs claimed from these queues, in this order. is_full: the claim may not have reached the last."""
        if len(self._needs) > MOST_QUEUES:
            self._needs.clear()
        kinds: dict[str, set[str]] = {}
        for job in jobs:
            kinds.setdefault(job.queue_name, set()).add(registry.runner_of(job.task))
        for name in names[: names.index(jobs[-1].queue_name)] if is_full and jobs else names:
            self._needs.pop(name, None)
        for name, runners in kinds.items():
            self._needs[name] = Need(runners, now + KNOWN_FOR)

    def _room(self, name: str, free: Free, now: float) -> int:
        need = self._needs.get(name)
        return max(free.values()) if need is None or need.until <= now else need.room(free)
