"""How a supervisor and its workers communicate: by commands, exit codes, and memory that both share.

Downwards: commands in the worker's lifeline, which is a pipe. A terminal or an init system may send a signal twice, but
not a command. When the pipe ends, the supervisor is gone. Upwards: the exit code. Both ways: the shared memory.

In that memory the worker shows the stamps of its control loop, how many slots are free, which calls it has answered,
and a job that must run alone. The supervisor shows until when it looks for jobs in the worker's place, and when it
wrote the worker's heartbeat. So an idle worker sends no statements, and one notification wakes one worker.

`HangingQueues`: the queues whose jobs the processes of a worker, one after the other, have given up as stuck.

Invariant: the loop writes a stamp in each turn. So the supervisor detects a frozen loop, whatever the reason.

Invariant: a promise of the supervisor ends by itself. A worker whose supervisor hangs soon looks for jobs on its own.
"""

import mmap
import signal
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..values.records import LeaseRef

STOP, STOP_NOW, RECYCLE, CALL = b"s", b"n", b"r", b"c"
"""To stop; to stop without waiting for jobs; to finish all jobs and be replaced; to look for jobs in the queue whose
name follows, or in all queues."""

END = b","
"""Ends a command. No queue's name has a comma."""

COMMANDS_SIZE = 65_536
"""Bytes to read at once: all that a pipe holds, so that no command is read in part."""

EXIT_CLEAN = 93
"""Exit code of a worker that settled or released every job it held. Not 0: a task may call `os._exit(0)`."""

EXIT_STUCK = 94
"""Exit code of a worker that settled or released every job it held, except for a stuck one."""

EXIT_RECYCLED = 95
"""Exit code of a worker that settled or released every job it held, to be replaced: because it reached
`--max-jobs-per-worker` or `--max-memory-mb`, because one of its attempts was interrupted, or by request."""

EXIT_BLOCKED = 96
"""Exit code of a worker that settled or released every job it held, to be replaced: because code left behind by a job,
or a hanging signal receiver, blocked other jobs."""

_CAUSES = {
    EXIT_CLEAN: "it received SIGTERM or SIGINT directly",
    EXIT_STUCK: "a job was stuck",
    EXIT_RECYCLED: "it was to be replaced",
    EXIT_BLOCKED: "code left behind by a job, or a hanging signal receiver, blocked other jobs",
}


def encode_command(kind: bytes, queue_name: str = "") -> bytes:
    """A command. At most 4,096 bytes, so that it is written as a whole."""
    return kind + queue_name.encode() + END


def decode_commands(data: bytes) -> Iterator[tuple[bytes, str]]:
    """The commands of one read, each with the name of a queue."""
    for command in data.split(END)[:-1]:
        yield command[:1], command[1:].decode()


def describe_exit(code: int) -> str:
    """Why a worker ended unexpectedly, from its exit code. A negative code is a signal, as in the module `os`."""
    if code < 0:
        return f"signal {-code} ({signal_name(-code)})"
    return _CAUSES.get(code, f"exit code {code}")


def signal_name(number: int) -> str:
    """`SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unnamed"


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


HANGING_ENTRIES = 128
"""Attempts that were given up and are remembered."""

SHORTEST_MEMORY = 60.0
"""Seconds for which an attempt is remembered; twice its duration, if that is longer: so the next attempt that hangs for
as long is given up before that time is over."""


class HangingQueues:
    """Which queues hang: many attempts of their jobs were given up as stuck lately. Times are monotonic seconds.

    Made before the forks that share it: the worker processes of one name, one after the other, of which one at a time
    writes. A process whose slots are all stuck is replaced, and without this memory the jobs of a hanging queue would
    fill the slots of each new process.
    """

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, 16 * HANGING_ENTRIES))
        self._names, self._until = memory[: 8 * HANGING_ENTRIES].cast("q"), memory[8 * HANGING_ENTRIES :].cast("d")

    def note(self, queue_name: str, seconds: float, now: float) -> None:
        """Note that an attempt of a job of this queue ran for `seconds` and was given up."""
        entry = min(range(HANGING_ENTRIES), key=self._until.__getitem__)
        self._names[entry] = hash(queue_name)  # forked processes share the seed of `hash`
        self._until[entry] = now + max(SHORTEST_MEMORY, 2 * seconds)

    def is_empty(self, now: float) -> bool:
        return max(self._until.tolist()) <= now

    def hangs(self, queue_name: str, now: float, *, slots: int) -> bool:
        """Whether the number of its attempts that were given up lately reaches half of the slots."""
        name = hash(queue_name)
        given_up = sum(name == each and until > now for each, until in zip(self._names, self._until, strict=True))
        return given_up >= max(min(slots, HANGING_ENTRIES) // 2, 1)


PROMISE = 1.5
"""Seconds for which a supervisor promises to watch the queues. It renews the promise twice a second."""

SLOTS, ROOM, HEARD, ANSWERED, CLAIMED, IS_SESSION = range(6)
"""The places of the counts."""

WATCHED_UNTIL, HEARTBEAT_AT = range(6, 8)
"""The places of the times."""

RUNNING, SUSPECT, SUSPECT_LEASE = range(8, 11)
"""The places of further counts."""


class SharedCounts:
    """What a worker and its supervisor tell each other, in memory that is made before the fork that shares it.

    Times are monotonic seconds: processes of one machine share this clock. A call passes three stages: the worker has
    read it, then heard it, then answered it.
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
