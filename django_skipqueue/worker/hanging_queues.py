"""Which queues hang: many attempts of their jobs were given up as stuck lately.

The memory is shared by the worker processes of one name, one after the other. A process whose slots are all stuck is
replaced, and without this memory the jobs of a hanging queue would fill the slots of each new process.
"""

import mmap

ENTRIES = 128
"""Attempts that are remembered."""

SHORTEST = 60.0
"""Seconds for which an attempt is remembered; twice its duration, if that is longer: so the next attempt that hangs for
as long is given up before that time is over."""


class HangingQueues:
    """Made before the forks that share it. One process at a time writes. Times are monotonic seconds."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, 16 * ENTRIES))
        self._names, self._until = memory[: 8 * ENTRIES].cast("q"), memory[8 * ENTRIES :].cast("d")

    def note(self, queue_name: str, seconds: float, now: float) -> None:
        """Note that an attempt of a job of this queue ran for `seconds` and was given up."""
        entry = min(range(ENTRIES), key=self._until.__getitem__)
        self._names[entry] = hash(queue_name)  # forked processes share the seed of `hash`
        self._until[entry] = now + max(SHORTEST, 2 * seconds)

    def is_empty(self, now: float) -> bool:
        return max(self._until.tolist()) <= now

    def hangs(self, queue_name: str, now: float, *, slots: int) -> bool:
        """Whether the number of its attempts that were given up lately reaches half of the slots."""
        name = hash(queue_name)
        given_up = sum(name == each and until > now for each, until in zip(self._names, self._until, strict=True))
        return given_up >= max(min(slots, ENTRIES) // 2, 1)
