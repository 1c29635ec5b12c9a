"""A supervisor and its workers communicate by commands, exit codes, and shared memory.

The supervisor writes commands into a pipe, the worker's lifeline. It does not send signals, because a terminal or an
init system may also send signals. When the pipe ends, the supervisor is gone. A worker reports by its exit code why it
ended.

In the shared memory, the worker's control loop writes a stamp in each turn, by which the supervisor detects a frozen
loop. The worker also shows how many slots are free, which calls it has answered, and a job that must run alone. A call
is a command by which the supervisor tells a worker to look for jobs.

The supervisor watches the queues for its workers, so that an idle worker sends no statements, and one notification
wakes one worker. It writes into the shared memory until when it promises to watch. If the supervisor hangs, the promise
ends by itself, and the worker looks for jobs on its own.

`HangingQueues` remembers the queues whose jobs were stuck, even after the worker process was replaced.
"""

import mmap
import signal
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..values.records import LeaseRef

STOP, STOP_NOW, RECYCLE, CALL = b"s", b"n", b"r", b"c"
"""The commands, in this order: stop; stop without waiting for jobs; finish all jobs and be replaced; look for jobs, in
the queue whose name follows, or else in all queues."""

COMMAND_END = b","
"""Ends a command. No queue's name has a comma."""

COMMANDS_SIZE = 65_536
"""How many bytes to read at once. A pipe can hold no more, so each command is read as a whole."""

EXIT_CLEAN = 93
"""Exit code of a worker that settled or released all its jobs. It is not 0, because a task may call `os._exit(0)`."""

EXIT_STUCK = 94
"""Exit code of a worker that settled or released all its jobs, except for a stuck job."""

EXIT_RECYCLED = 95
"""Exit code of a worker that settled or released all its jobs, and must be replaced: because it reached
`--max-jobs-per-worker` or `--max-memory-mb`, because one of its attempts was interrupted, or by request."""

EXIT_BLOCKED = 96
"""Exit code of a worker that settled or released all its jobs, and must be replaced: because code left behind by a job,
or a hanging signal receiver, blocked other jobs."""

_CAUSES = {
    EXIT_CLEAN: "it received SIGTERM or SIGINT directly",
    EXIT_STUCK: "a job was stuck",
    EXIT_RECYCLED: "it was to be replaced",
    EXIT_BLOCKED: "code left behind by a job, or a hanging signal receiver, blocked other jobs",
}


def encode_command(kind: bytes, queue_name: str = "") -> bytes:
    """Encode a command. It has at most 4,096 bytes, so that the pipe takes it as a whole."""
    return kind + queue_name.encode() + COMMAND_END


def decode_commands(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Decode the commands that were read from the pipe, each with the name of a queue, which may be empty."""
    for command in data.split(COMMAND_END)[:-1]:
        yield command[:1], command[1:].decode()


def describe_exit(code: int) -> str:
    """Describe why a worker ended unexpectedly, by its exit code. A negative code is a signal."""
    if code < 0:
        return f"signal {-code} ({signal_name(-code)})"
    return _CAUSES.get(code, f"exit code {code}")


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unnamed"


_STAMP = struct.Struct("qqd")


class Stamp(NamedTuple):
    """Shows that a worker's control loop runs."""

    number: int
    """Incremented with each stamp; 0 if no stamp was written yet."""
    jobs_done: int
    """The number of attempts that the process has settled."""
    within: float
    """The loop promises to write its next stamp within this many seconds."""


class Stamps:
    """Shared memory with the last stamp, made before the fork. The worker writes it, and the supervisor reads it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STAMP.size)
        self._number = 0

    def put(self, *, jobs_done: int, within: float) -> None:
        """Write a stamp. The loop must write the next stamp within this many seconds."""
        self._number += 1
        _STAMP.pack_into(self._memory, 0, self._number, jobs_done, within)

    def last(self) -> Stamp:
        return Stamp._make(_STAMP.unpack_from(self._memory, 0))


HANGING_ENTRIES = 128
"""How many stuck attempts are remembered."""

SHORTEST_MEMORY = 60.0
"""A stuck attempt is remembered for this many seconds, or for twice its duration if this is longer. So when another
attempt hangs equally long, the first attempt is still remembered."""


class HangingQueues:
    """Remembers queues whose jobs were often stuck lately. Times are by the monotonic clock.

    This memory is shared by the successive processes of one worker: a process whose slots are all stuck is replaced by
    a new process. Without this memory, the jobs of a hanging queue would fill the slots of each new process. Only one
    process writes at a time.
    """

    def __init__(self) -> None:
        # An entry is the hash of a queue's name, and the time until which it is remembered. Each takes 8 bytes.
        memory = memoryview(mmap.mmap(-1, 16 * HANGING_ENTRIES))
        self._names, self._until = memory[: 8 * HANGING_ENTRIES].cast("q"), memory[8 * HANGING_ENTRIES :].cast("d")

    def note(self, queue_name: str, seconds: float, now: float) -> None:
        """Note that an attempt in this queue ran for `seconds`, and was stuck."""
        entry = min(range(HANGING_ENTRIES), key=self._until.__getitem__)
        self._names[entry] = hash(queue_name)  # forked processes share the seed of `hash`
        self._until[entry] = now + max(SHORTEST_MEMORY, 2 * seconds)

    def is_empty(self, now: float) -> bool:
        return max(self._until.tolist()) <= now

    def hangs(self, queue_name: str, now: float, *, slots: int) -> bool:
        """Whether the number of attempts in this queue that were stuck lately is at least half of the slots."""
        name_hash = hash(queue_name)
        entries = zip(self._names, self._until, strict=True)
        stuck = sum(entry_hash == name_hash and until > now for entry_hash, until in entries)
        return stuck >= max(min(slots, HANGING_ENTRIES) // 2, 1)


PROMISE = 1.5
"""For how many seconds a supervisor promises to watch the queues. It renews the promise twice per second."""


SLOTS, ROOM, HEARD, ANSWERED, CLAIMED, RUNNING = range(6)
"""The positions of the counts that only the worker writes. `offer` uses them directly, because properties are
slower."""


def _count(position: int) -> Any:
    """Make a property for the integer at this position in the memory of a `SharedCounts`."""

    def write(shared: "SharedCounts", count: int) -> None:
        shared._counts[position] = count

    return property(lambda shared: shared._counts[position], write)


def _time(position: int) -> Any:
    """Make a property for the time at this position in the memory of a `SharedCounts`."""

    def write(shared: "SharedCounts", time: float) -> None:
        shared._times[position] = time

    return property(lambda shared: shared._times[position], write)


class SharedCounts:
    """Memory that a worker and its supervisor share. It is made before the fork.

    Times are by the monotonic clock, which all processes of a machine share. A call is
    read by the worker, then heard, which means that a claim has begun, and answered once this claim has succeeded.
    """

    # The worker writes

    slots: int = _count(SLOTS)
    """How many more jobs could begin at once when the worker last went to sleep."""
    room: int = _count(ROOM)
    """How many jobs the worker had room for when it last went to sleep, including jobs that it would claim ahead."""
    heard: int = _count(HEARD)
    """How many calls the worker had read before its last claim began. After each later call, it will claim again."""
    answered: int = _count(ANSWERED)
    """How many calls the worker has answered with a claim that succeeded."""
    claimed: int = _count(CLAIMED)
    """How many jobs the worker has claimed so far."""
    running: int = _count(RUNNING)
    """How many jobs the worker ran when it last went to sleep."""
    suspect_id: int = _count(6)
    suspect_lease: int = _count(7)
    """The job that must run alone, and that the worker offers to the supervisor. The id is 0 if there is none; the
    supervisor sets it to 0."""

    # The supervisor writes

    is_session: int = _count(8)
    """Whether connections to the database are sessions, which no pooler gives to other clients."""
    watched_until: float = _time(9)
    """The time until which the supervisor promises to call the worker if there are jobs."""
    heartbeat_at: float = _time(10)
    """When the supervisor last wrote the worker's heartbeat successfully; 0 if it never did."""

    def __init__(self, hanging_queues: HangingQueues | None = None) -> None:
        self.hanging_queues = hanging_queues or HangingQueues()
        """The hanging queues, which the worker knows from the processes that it replaces."""
        # A memoryview writes each item atomically. `struct.pack_into` would first fill it with zeros.
        memory = memoryview(mmap.mmap(-1, 11 * 8))  # 11 properties of 8 bytes each
        self._counts, self._times = memory.cast("q"), memory.cast("d")
        self._read = self._answered = 0

    def read_call(self) -> None:
        """Note that the worker has read a call, which is the supervisor's command to look for jobs."""
        self._read += 1

    def begin_claim(self) -> None:
        """Note that a claim begins. It answers all calls that the worker has read before."""
        self.heard = self._read

    def end_claim(self) -> None:
        """Note that the claim has succeeded. The supervisor sees this after the worker's next `offer`."""
        self._answered = self.heard

    def offer(self, *, slots: int, room: int, claimed: int, running: int = 0) -> None:
        """Show the supervisor how many jobs the worker has and could take, and how many calls it has answered."""
        counts = self._counts
        counts[CLAIMED] = claimed
        counts[RUNNING] = running
        counts[SLOTS] = slots
        counts[ROOM] = room
        counts[ANSWERED] = self._answered  # at the end, so that a supervisor which sees it also sees the other counts

    def offer_suspect(self, ref: LeaseRef) -> None:
        """Show the supervisor a job that must run alone in a process, so that another process takes it over."""
        self.suspect_lease = ref[1]
        self.suspect_id = ref[0]  # at the end, so that a supervisor which sees it also sees the lease

    def take_suspect(self) -> LeaseRef | None:
        """Return the job that the worker offers, if there is one, and end the offer."""
        ref = self.suspect_id, self.suspect_lease
        self.suspect_id = 0
        return ref if ref[0] else None
