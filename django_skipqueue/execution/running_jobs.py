"""The jobs that a worker has started, in memory that its supervisor shares.

An attempt is charged at the claim. When the worker dies, the jobs found here stay charged, and the others are released.

Invariant: after the death of a worker the supervisor finds here the jobs that were running, and the last job of each
idle thread. The last job may have caused the death, so it is charged too, unless its outcome was written. Jobs that the
worker had claimed but not started are released, and no attempt is charged.
"""

import mmap
import struct
from collections.abc import Collection

_ENTRY = struct.Struct("q")


class RunningJobs:
    """Holds an entry for each thread and each coroutine: the id of its job. Made before the fork that shares it."""

    def __init__(self, entries: int) -> None:
        self._memory = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = entries

    def begin(self, index: int, job_id: int) -> None:
        """Note that the thread or coroutine of this entry runs this job.

        Call only after the outcome of its previous job was handed in: its id is overwritten.
        """
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, job_id)

    def end(self, index: int) -> None:
        """Clear this entry: its thread or coroutine runs no job. If the process dies now, its last job is released."""
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, 0)

    def charge_only(self, job_ids: Collection[int]) -> None:
        """Clear the entries of all other jobs: if the process dies now, only these jobs are charged."""
        for index, (job_id,) in enumerate(_ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size])):
            if job_id not in job_ids:
                self.end(index)

    def job_ids(self) -> list[int]:
        """The jobs to charge."""
        return [job_id for (job_id,) in _ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size]) if job_id]
