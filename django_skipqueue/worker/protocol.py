"""How a supervisor and its workers communicate: by commands, exit codes, and memory that both share.

The supervisor writes commands into the worker's lifeline, which is a pipe. A terminal or an init system may send a
signal twice, but nobody sends a command twice. When the pipe ends, the supervisor is gone. A worker answers with its
exit code. Both read and write shared memory.

In the shared memory the worker shows the stamps of its control loop, how many slots are free, which calls it has
answered, and a job that must run alone. The supervisor shows until when it looks for jobs in the worker's place, and
when it wrote the worker's heartbeat. So an idle worker sends no statements, and one notification wakes one worker.

`HangingQueues` remembers the queues whose jobs a worker has given up as stuck, also when a new process replaces the
worker's process.

Invariant: the loop writes a stamp in each turn. So the supervisor detects a frozen loop, whatever the reason.

Invariant: a promise of the supervisor ends without its help. A worker whose supervisor hangs soon looks for jobs on its
own.
"""

import mmap
import signal
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..values.records import LeaseRef

STOP, STOP_NOW, RECYCLE, CALL = b"s", b"n", b"r", b"c"
"""The commands: stop; stop without waiting for jobs; finish all jobs and be replaced; look for jobs in the queue whose
name follows, or in all queues."""

COMMAND_END = b","
"""Ends a command. No queue's name has a comma."""

COMMANDS_SIZE = 65_536
"""Bytes to read in one call: all that a pipe holds, so that no command is read in part."""

EXIT_CLEAN = 93
"""Exit code of a worker that settled or released every job it held. Not 0: a task may call `os._exit(0)`."""

EXIT_STUCK = 94
"""Exit code of a worker that settled or released every job it held, except for a stuck job."""

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
    return kind + queue_name.encode() + COMMAND_END


def decode_commands(data: bytes) -> Iterator[tuple[bytes, str]]:
    """The commands of one read, each with the name of a queue."""
    for command in data.split(COMMAND_END)[:-1]:
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
"""Seconds for which an attempt is remembered, or twice its duration, if that is longer: so an attempt that hangs again
for this duration is given up while the first attempt is still remembered."""


class HangingQueues:
    """The queues that hang: lately, many attempts of their jobs were given up as stuck. Times are monotonic seconds.

    The supervisor makes it before it forks the first process of a worker. Each process that replaces this process
    shares the memory, and one process at a time writes. A process is replaced once all its slots are stuck. Without
    this memory, the jobs of a hanging queue would fill the slots of each new process.
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
        """Whether lately as many attempts of the queue's jobs were given up as half of the slots."""
        name = hash(queue_name)
        given_up = sum(name == each and until > now for each, until in zip(self._names, self._until, strict=True))
        return given_up >= max(min(slots, HANGING_ENTRIES) // 2, 1)


PROMISE = 1.5
"""Seconds for which a supervisor promises to watch the queues. It renews the promise twice a second."""


SLOTS, ROOM, HEARD, ANSWERED, CLAIMED, RUNNING = range(6)
"""The places of the counts that only the worker writes. `offer` uses no property: that would take twice the time."""


def _count(place: int) -> Any:
    """A property for the integer at this place in the memory of a `SharedCounts`."""

    def write(shared: "SharedCounts", count: int) -> None:
        shared._counts[place] = count

    return property(lambda shared: shared._counts[place], write)


def _time(place: int) -> Any:
    """A property for the time at this place in the memory of a `SharedCounts`."""

    def write(shared: "SharedCounts", time: float) -> None:
        shared._times[place] = time

    return property(lambda shared: shared._times[place], write)


class SharedCounts:
    """What a worker and its supervisor show each other, in memory that is made before the fork that shares it.

    Times are monotonic seconds: processes of one machine share this clock. A call passes three stages: the worker has
    read it, then heard it, then answered it.
    """

    # The worker writes

    slots: int = _count(SLOTS)
    """How many jobs of any kind could begin at once when the worker last went to sleep."""
    room: int = _count(ROOM)
    """How many jobs the worker would have claimed then: jobs ahead, and jobs for a runner with free slots, included."""
    heard: int = _count(HEARD)
    """How many calls the worker had read before its last claim began. A claim follows each later call."""
    answered: int = _count(ANSWERED)
    """How many calls the worker has answered with a claim that succeeded."""
    claimed: int = _count(CLAIMED)
    running: int = _count(RUNNING)
    suspect_id: int = _count(6)
    suspect_lease: int = _count(7)
    """The job that the worker offers; the id is 0 if it offers none, and the supervisor may set it to 0."""

    # The supervisor writes

    is_session: int = _count(8)
    """Whether connections to the database are sessions, which no pooler shares with other clients."""
    watched_until: float = _time(9)
    """Until when the supervisor calls the worker if there are jobs."""
    heartbeat_at: float = _time(10)
    """When the supervisor last began to write the heartbeat of the worker, and succeeded; 0: never."""

    def __init__(self, hanging_queues: HangingQueues | None = None) -> None:
        self.hanging_queues = hanging_queues or HangingQueues()
        """What the worker knows from the processes that it replaces."""
        # An item of a view is written and read as a whole. `struct.pack_into` first fills its place with zeros.
        memory = memoryview(mmap.mmap(-1, 88))
        self._counts, self._times = memory.cast("q"), memory.cast("d")
        self._read = self._answered = 0

    def read_call(self) -> None:
        self._read += 1

    def begin_claim(self) -> None:
        self.heard = self._read

    def end_claim(self) -> None:
        """Note that the claim has succeeded. The supervisor sees it with the next offer."""
        self._answered = self.heard

    def offer(self, *, slots: int, room: int, claimed: int, running: int = 0) -> None:
        counts = self._counts
        counts[CLAIMED] = claimed
        counts[RUNNING] = running
        counts[SLOTS] = slots
        counts[ROOM] = room
        counts[ANSWERED] = self._answered  # last: a supervisor that sees it sees the other numbers as well

    def offer_suspect(self, ref: LeaseRef) -> None:
        self.suspect_lease = ref[1]
        self.suspect_id = ref[0]  # last: a supervisor that sees it sees the lease as well

    def take_suspect(self) -> LeaseRef | None:
        """Return the lease of the job that the worker offers, if any, and end the offer."""
        ref = self.suspect_id, self.suspect_lease
        self.suspect_id = 0
        return ref if ref[0] else None
