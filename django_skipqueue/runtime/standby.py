"""What a supervisor and one of its workers let each other know, in memory that both share.

The worker shows how many slots are free, which calls it has answered, and a job that must run alone. The supervisor
shows until when it looks for jobs in the worker's place, and when it wrote the worker's heartbeat. So an idle worker
sends no statements, and one notification wakes one worker.

Invariant: a promise of the supervisor ends by itself. A worker whose supervisor hangs soon looks for jobs on its own.
"""

import mmap

from ..values.records import LeaseRef
from .hanging_queues import HangingQueues

PROMISE = 1.5
"""Seconds for which a supervisor promises to watch the queues. It renews the promise twice a second."""

SLOTS, ROOM, HEARD, ANSWERED, CLAIMED, IS_SESSION = range(6)
"""The places of the counts."""

WATCHED_UNTIL, HEARTBEAT_AT = range(6, 8)
"""The places of the times."""

RUNNING, SUSPECT, SUSPECT_LEASE = range(8, 11)
"""The places of further counts."""


class Standby:
    """Made before the fork that shares it. Times are monotonic seconds: processes of one machine share this clock.

    A call passes three stages: the worker has read it, then heard it, then answered it.
    """

    def __init__(self, hanging_queues: HangingQueues | None = None) -> None:
        self.hanging_queues = hanging_queues or HangingQueues()
        """What the worker knows from the processes that it replaces."""
        # An item of a view is written and read as a whole. `struct.pack_into` first fills its place with zeros.
        memory = memoryview(mmap.mmap(-1, 88))
        self._counts, self._times = memory.cast("q"), memory.cast("d")
        self._read = self._looked = 0

    # The worker writes

    @property
    def slots(self) -> int:
        """How many jobs of any kind could begin at once when the worker last went to sleep."""
        return self._counts[SLOTS]

    @property
    def room(self) -> int:
        """How many jobs the worker would have claimed then: ahead as well, and for a runner that has free slots."""
        return self._counts[ROOM]

    @property
    def heard(self) -> int:
        """How many calls the worker had read before its last claim began. A later call is followed by a claim."""
        return self._counts[HEARD]

    @property
    def answered(self) -> int:
        """How many calls a claim has answered that succeeded."""
        return self._counts[ANSWERED]

    @property
    def claimed(self) -> int:
        return self._counts[CLAIMED]

    @property
    def running(self) -> int:
        return self._counts[RUNNING]

    def read_call(self) -> None:
        self._read += 1

    def looks(self) -> None:
        self._counts[HEARD] = self._read

    def looked(self) -> None:
        """Note that the claim has succeeded. The supervisor sees it with the next offer."""
        self._looked = self.heard

    def offer(self, *, slots: int, room: int, claimed: int, running: int = 0) -> None:
        self._counts[CLAIMED] = claimed
        self._counts[RUNNING] = running
        self._counts[SLOTS] = slots
        self._counts[ROOM] = room
        self._counts[ANSWERED] = self._looked  # last: who sees it sees the others as well

    def offer_suspect(self, ref: LeaseRef) -> None:
        self._counts[SUSPECT_LEASE] = ref[1]
        self._counts[SUSPECT] = ref[0]

    # Both write

    def take_suspect(self) -> LeaseRef | None:
        """Return the lease of the job that the worker offers, if any, and end the offer."""
        ref = self._counts[SUSPECT], self._counts[SUSPECT_LEASE]
        self._counts[SUSPECT] = 0
        return ref if ref[0] else None

    # The supervisor writes

    @property
    def watched_until(self) -> float:
        """Until when the supervisor calls the worker if there are jobs."""
        return self._times[WATCHED_UNTIL]

    @watched_until.setter
    def watched_until(self, time: float) -> None:
        self._times[WATCHED_UNTIL] = time

    @property
    def heartbeat_at(self) -> float:
        """When the supervisor last began to write the heartbeat of the worker, and succeeded; 0: never."""
        return self._times[HEARTBEAT_AT]

    @heartbeat_at.setter
    def heartbeat_at(self, time: float) -> None:
        self._times[HEARTBEAT_AT] = time

    @property
    def is_session(self) -> bool:
        """Whether connections to the database are sessions, and not shared with others by a pooler."""
        return bool(self._counts[IS_SESSION])

    @is_session.setter
    def is_session(self, value: bool) -> None:
        self._counts[IS_SESSION] = value
