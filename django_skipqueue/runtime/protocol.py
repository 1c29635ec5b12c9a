"""What a supervisor and its workers say to each other.

Down: bytes in a worker's lifeline, a pipe. Unlike a signal, they cannot be doubled by a terminal or an init system; and
the end of the pipe says that the supervisor is gone. Up: the exit code.
"""

import signal

STOP, STOP_NOW = b"s", b"n"

EXIT_OK = 93
"""Exit code of a process that has given back all it held. Not 0: a task may call os._exit(0)."""

EXIT_STUCK = 94
"""Exit code of a process that has given back all it held, but for a job that is stuck."""

EXIT_RECYCLED = 95
"""Exit code of a process that has given back all it held because it is to be replaced: by its jobs or its memory."""

EXIT_BLOCKED = 96
"""Exit code of a process that has given back all it held, because what jobs had left behind blocked others."""

_CAUSES = {
    EXIT_OK: "told to stop by another process",
    EXIT_STUCK: "a job was stuck",
    EXIT_RECYCLED: "it was to be replaced",
    EXIT_BLOCKED: "what jobs had left behind blocked others",
}


def describe_exit(code: int) -> str:
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
