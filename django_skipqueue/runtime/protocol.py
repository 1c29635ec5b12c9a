"""How a supervisor and its workers communicate.

Downwards: commands in the worker's lifeline, which is a pipe. A terminal or an init system may send a signal twice, but
not a command. When the pipe ends, the supervisor is gone. Upwards: the exit code. Both ways: `runtime/standby.py`.
"""

import signal
from collections.abc import Iterator

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
