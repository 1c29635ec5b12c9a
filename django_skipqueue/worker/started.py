"""Which jobs a worker has begun, in memory that outlives it.

Invariant: whoever reads it after the worker's death finds the jobs that were running then, and of each thread without a
job the last one: that may have been its end, and is charged as well, unless its outcome was written. What the worker
had claimed and not begun goes back free.
"""

import mmap
import struct
from collections.abc import Collection

SLOTS_PER_PLACE = 4
"""A place is one of `--concurrency`: a slot for its thread, one for its coroutine, and two for those that come in the
place of stuck ones."""

_SLOT = struct.Struct("q")


class StartedJobs:
    """A slot for each thread and each coroutine, with the id of the job in it. Made before the fork that shares it."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * _SLOT.size)
        self._slots = slots

    def begin(self, slot: int, job_id: int) -> None:
        """Note that this slot runs this job now; its last one has been handed in."""
        _SLOT.pack_into(self._memory, slot * _SLOT.size, job_id)

    def end(self, slot: int) -> None:
        """Note that this slot runs nothing, and that nobody is to blame for its last job."""
        _SLOT.pack_into(self._memory, slot * _SLOT.size, 0)

    def acquit(self, *, but: Collection[int]) -> None:
        """Note that what runs is not to blame for the end of the process, but for these jobs."""
        for slot, (job_id,) in enumerate(_SLOT.iter_unpack(self._memory[: self._slots * _SLOT.size])):
            if job_id not in but:
                self.end(slot)

    def job_ids(self) -> list[int]:
        """The jobs to charge."""
        return [job_id for (job_id,) in _SLOT.iter_unpack(self._memory[: self._slots * _SLOT.size]) if job_id]
