"""What a supervisor and one of its workers let each other know, in memory that both share.

The worker shows how many slots are free. The supervisor shows until when it looks for jobs in the worker's place,
and when it wrote the worker's heartbeat. So an idle worker sends no statements, and one notification wakes one worker.

Invariant: a promise of the supervisor ends by itself. A worker whose supervisor hangs soon looks for jobs on its own.
"""

import mmap
import struct

_COUNT = struct.Struct("q")
_TIME = struct.Struct("d")

PROMISE = 3.0
"""Seconds for which a supervisor promises to watch the queues. It renews the promise every second."""

ROOM, HEARD, CLAIMED, WATCHED_UNTIL, HEARTBEAT_AT, IS_SESSION = range(0, 48, 8)
"""The places of the fields. A field is written and read as a whole: eight bytes, aligned."""


class Standby:
    """Made before the fork that shares it. Times are monotonic seconds: processes of one machine share this clock."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 48)
        self._heard = 0  # calls that the worker has read, and not yet answered

    # The worker writes

    @property
    def room(self) -> int:
        """How many slots were free when the worker last went to sleep: those of its fullest runner."""
        return self._count(ROOM)

    @property
    def heard(self) -> int:
        """How many calls of its supervisor the worker has read, and answered with a claim if it had room."""
        return self._count(HEARD)

    @property
    def claimed(self) -> int:
        """How many jobs the worker has claimed."""
        return self._count(CLAIMED)

    def hear(self) -> None:
        """Count a call that was read. The supervisor sees it with the next offer, after the claim that answers it."""
        self._heard += 1

    def offer(self, *, room: int, claimed: int) -> None:
        """Note the state of the worker before it sleeps."""
        _COUNT.pack_into(self._memory, CLAIMED, claimed)
        _COUNT.pack_into(self._memory, ROOM, room)
        _COUNT.pack_into(self._memory, HEARD, self._heard)  # last: who sees it sees the room as well

    # The supervisor writes

    @property
    def watched_until(self) -> float:
        """Until when the supervisor calls the worker if there are jobs."""
        return self._time(WATCHED_UNTIL)

    @watched_until.setter
    def watched_until(self, time: float) -> None:
        _TIME.pack_into(self._memory, WATCHED_UNTIL, time)

    @property
    def heartbeat_at(self) -> float:
        """When the supervisor last began to write the heartbeat of the worker, and succeeded; 0: never."""
        return self._time(HEARTBEAT_AT)

    @heartbeat_at.setter
    def heartbeat_at(self, time: float) -> None:
        _TIME.pack_into(self._memory, HEARTBEAT_AT, time)

    @property
    def is_session(self) -> bool:
        """Whether connections to the database are sessions, and not shared with others by a pooler."""
        return bool(self._count(IS_SESSION))

    @is_session.setter
    def is_session(self, value: bool) -> None:
        _COUNT.pack_into(self._memory, IS_SESSION, value)

    def _count(self, place: int) -> int:
        (value,) = _COUNT.unpack_from(self._memory, place)
        return int(value)

    def _time(self, place: int) -> float:
        (value,) = _TIME.unpack_from(self._memory, place)
        return float(value)
