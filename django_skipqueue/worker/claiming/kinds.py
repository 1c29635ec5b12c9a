"""Which runners the jobs of a queue need, as far as the last claims have shown.

The kind of a job is the runner of its task. A claim learns it when it has the job. So where one runner is full, a queue
whose last jobs were for that runner is passed over, and looked at again now and then: jobs that find no room go back.
In one queue jobs of all kinds stay in their order.

Pure: it is told the time, in monotonic seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...tasks.registry import registry
from ...values.records import ClaimedJob

KNOWN_FOR = 1.0
"""Seconds for which the jobs of a queue are held to be like those that it brought last."""

MOST_QUEUES = 10_000
"""Queues that are remembered."""


Free = Mapping[str, int]
"""How many more jobs there is room for, by the name of the runner."""


class Need(NamedTuple):
    """Which runners the jobs of a queue need."""

    runners: set[str]
    until: float

    def room(self, free: Free) -> int:
        """How many jobs of the queue there is room for, whichever they are."""
        return min(free[runner] for runner in self.runners)


class Kinds:
    """Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, Need] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """How many jobs to claim at once from these queues: as many as there is room for, whichever they are."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free.values()))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        """Those of these queues whose jobs there is room for."""
        return names if all(free.values()) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note what a claim from these queues brought, in this order; `is_full`: it may not have come to the last."""
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
