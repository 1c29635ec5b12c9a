"""Which places the jobs of a queue need, threads or coroutines, as far as the last claims have shown.

A claim learns what kind a job is of when it has it. So where one kind of places is full, a queue that has just brought
jobs of that kind is passed over, and looked at again now and then: what it brings too much of goes back. In one queue
jobs of both kinds stay in their order.

Pure: it is told the time, in monotonic seconds.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...tasks.registry import registry
from ...values.records import ClaimedJob

KNOWN_FOR = 1.0
"""Seconds for which the jobs of a queue are held to be like those that it brought last."""

MOST_QUEUES = 10_000
"""Queues that are remembered."""


class Free(NamedTuple):
    """How many more jobs of each kind there is room for."""

    threads: int
    coroutines: int

    def for_job(self, job: ClaimedJob) -> int:
        """How many there is room for of the kind of this one."""
        return self.coroutines if registry.is_async(job.task) else self.threads


class Need(NamedTuple):
    """Which places the jobs of a queue need."""

    threads: bool
    coroutines: bool
    until: float

    def room(self, free: Free) -> int:
        """How many jobs of the queue there is room for, whichever they are."""
        if self.threads and self.coroutines:
            return min(free)
        return free.threads if self.threads else free.coroutines


class Kinds:
    """Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, Need] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """How many jobs to claim at once from these queues: as many as there is room for, whichever they are."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        """Those of these queues whose jobs there is room for."""
        return names if all(free) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note what a claim from these queues brought, in this order; `is_full`: it may not have come to the last."""
        if len(self._needs) > MOST_QUEUES:
            self._needs.clear()
        kinds: dict[str, set[bool]] = {}
        for job in jobs:
            kinds.setdefault(job.queue_name, set()).add(registry.is_async(job.task))
        for name in names[: names.index(jobs[-1].queue_name)] if is_full and jobs else names:
            self._needs.pop(name, None)
        for name, are_async in kinds.items():
            self._needs[name] = Need(False in are_async, True in are_async, now + KNOWN_FOR)

    def _room(self, name: str, free: Free, now: float) -> int:
        need = self._needs.get(name)
        return max(free) if need is None or need.until <= now else need.room(free)
