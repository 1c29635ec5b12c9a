"""The signs of life of a worker's control loop, in memory that it shares with its supervisor.

Invariant: only a loop that moves writes them, so that whatever freezes it is seen from outside.
"""

import mmap
import struct
from typing import NamedTuple

_STAMP = struct.Struct("qqd")


class Stamp(NamedTuple):
    """One sign of life."""

    number: int
    """One more each time; 0: there was none yet."""
    jobs_done: int
    """How many attempts the process has settled."""
    within: float
    """Seconds in which the next one was to come, by what the loop was about to do."""


class Stamps:
    """Made before the fork that shares it. The worker's control loop writes, the supervisor reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STAMP.size)
        self._number = 0

    def put(self, *, jobs_done: int, within: float) -> None:
        """Note that the control loop moves, and will do so again `within` seconds."""
        self._number += 1
        _STAMP.pack_into(self._memory, 0, self._number, jobs_done, within)

    def last(self) -> Stamp:
        """The last one."""
        return Stamp._make(_STAMP.unpack_from(self._memory, 0))
