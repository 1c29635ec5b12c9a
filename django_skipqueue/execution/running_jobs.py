"""Which jobs a worker has begun, in memory that outlives it.

Invariant: after the worker's death the supervisor finds here the jobs that were running, and of each thread without a
job the last one: that may have caused the death, and is charged too, unless its outcome was written. Jobs that the
worker had claimed and not begun are released, at no attempt.
"""

import mmap
import struct
from collections.abc import Collection

_ENTRY = struct.Struct("q")


class RunningJobs:
    """An entry for each thread and each coroutine, with the id of its job. Made before the fork that shares it."""

    def __init__(self, entries: int) -> None:
        self._memory = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = entries

    def begin(self, index: int, job_id: int) -> None:
        """Note that the thread or coroutine of this entry runs this job; the outcome of its last one is handed in."""
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, job_id)

    def end(self, index: int) -> None:
        """Note that the thread or coroutine of this entry runs nothing, and that its last job is not charged."""
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, 0)

    def charge_only(self, job_ids: Collection[int]) -> None:
        """Clear all entries except those of these jobs: if the process dies now, only these are charged."""
        for index, (job_id,) in enumerate(_ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size])):
            if job_id not in job_ids:
                self.end(index)

    def job_ids(self) -> list[int]:
        """The jobs to charge."""
        return [job_id for (job_id,) in _ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size]) if job_id]
