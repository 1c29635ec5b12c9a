"""The stamps of a worker's control loop, in memory that the worker shares with its supervisor.

Invariant: the loop writes a stamp in each turn. So the supervisor detects a frozen loop, whatever the reason.
"""

import mmap
import struct
from typing import NamedTuple

_STAMP = struct.Struct("qqd")


class Stamp(NamedTuple):
    number: int
    """Incremented with each stamp; 0: none was written yet."""
    jobs_done: int
    """Number of attempts that the process has settled."""
    within: float
    """The loop promised its next stamp within this many seconds."""


class Stamps:
    """Made before the fork that shares it. The worker's control loop writes, the supervisor reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STAMP.size)
        self._number = 0

    def put(self, *, jobs_done: int, within: float) -> None:
        """Write a stamp. The loop must write the next one within `within` seconds."""
        self._number += 1
        _STAMP.pack_into(self._memory, 0, self._number, jobs_done, within)

    def last(self) -> Stamp:
        return Stamp._make(_STAMP.unpack_from(self._memory, 0))
