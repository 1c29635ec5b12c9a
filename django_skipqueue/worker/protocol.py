"""What a supervisor and its workers say to each other.

Down: bytes in a worker's lifeline, a pipe. Unlike a signal, they cannot be doubled by a terminal or an init system; and
the end of the pipe says that the supervisor is gone. Up: the exit code.
"""

import signal

STOP, STOP_NOW = b"s", b"n"

ENDED_WELL = 93
"""Exit code of a process that has given back all it held. Not 0: a task may call os._exit(0)."""

STUCK = 94
"""Exit code of a process that has given back all it held, but for a job that is stuck."""

RECYCLED = 95
"""Exit code of a process that has given back all it held because it is to be replaced: by its jobs or its memory."""

BLOCKED = 96
"""Exit code of a process that has given back all it held, because what jobs had left behind blocked others."""

_CAUSES = {
    ENDED_WELL: "told to stop by another process",
    STUCK: "a job was stuck",
    RECYCLED: "it was to be replaced",
    BLOCKED: "what jobs had left behind blocked others",
}


def cause_of(code: int) -> str:
    """Why a worker ended that nobody had asked to, from its exit code; below 0 a signal, as `os` has it."""
    if code < 0:
        return f"signal {-code} ({signal_name(-code)})"
    return _CAUSES.get(code, f"exit code {code}")


def signal_name(number: int) -> str:
    """`SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unnamed"
