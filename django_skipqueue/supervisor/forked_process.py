"""A process that this one forks, keeps alive, and gives commands: a worker of a supervisor, a supervisor of a steward.

Invariant: without a running process there is no open pipe.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from ..events import liveness_logs
from ..runtime.log_queue import LogQueue, revive_listeners
from ..runtime.protocol import encode_command
from ..values.times import NEVER

FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 0.5, 30.0
"""Seconds until the replacement of a process whose predecessors keep dying within `SETTLED` of their start."""

SETTLED = 10.0
"""Seconds after which a process counts as running well."""

LAST_LINES = 2.0
"""Seconds for which a log that blocks may delay the end of a process."""

Run = Callable[[int, LogQueue], int]
"""The code of the child. It gets the read end of its lifeline and its started log queue, and returns its exit code."""


@dataclass(eq=False)
class ForkedProcess:
    """A name, under which a new process replaces the last one. Used by the parent alone."""

    name: str
    pid: int = field(default=0, kw_only=True)
    """0: no process runs."""
    start_at: float = field(default=0.0, kw_only=True)
    """When to start the next process, in monotonic seconds."""
    starts: int = field(default=0, kw_only=True)
    """How many processes were started under this name."""
    _lifeline: int = field(default=-1, kw_only=True)
    _filled_at: float = field(default=0.0, kw_only=True)
    _deaths: int = field(default=0, kw_only=True)
    """Number of deaths in a row, each soon after the start."""

    def fork(self, run: Run) -> None:
        """Fork a child that calls `run` and exits with the returned code.

        Raises `OSError` if the system allows no further process.
        """
        self.start_at, self._filled_at = NEVER, time.monotonic()
        with contextlib.ExitStack() as opened:
            read_end, self._lifeline = os.pipe()
            opened.callback(os.close, read_end)
            opened.callback(self._close_lifeline)
            os.set_blocking(self._lifeline, False)
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(self.name, run, read_end)
            opened.pop_all()
            self.starts += 1
        os.close(read_end)

    def stop(self, command: bytes) -> None:
        self._send_command(command)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def close_inherited(self) -> None:
        """In a child: close the lifeline's write end, which only the parent may hold open."""
        if self._lifeline >= 0:
            os.close(self._lifeline)

    def take_exit_code(self) -> int | None:
        """Check whether the process has ended, and if so, return its exit code: below 0 a signal. Otherwise `None`.

        The caller sets `pid` to 0, once it has noted what the process has left.
        """
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self._close_lifeline()
        return os.waitstatus_to_exitcode(status)

    def restart_later(self) -> float:
        """Start the next process later. Returns the delay in seconds, which grows with deaths soon after a start."""
        self._deaths = self._deaths + 1 if time.monotonic() - self._filled_at < SETTLED else 0
        doublings = self._deaths - 2
        delay = 0.0 if doublings < 0 else min(LONGEST_RESTART_DELAY, FIRST_RESTART_DELAY * 2**doublings)
        self.start_at = time.monotonic() + delay
        return delay

    def _send_command(self, kind: bytes, queue_name: str = "") -> None:
        """Write a command into the lifeline of the process, if it runs."""
        if self.pid:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, encode_command(kind, queue_name))

    def _close_lifeline(self) -> None:
        os.close(self._lifeline)
        self._lifeline = -1


def _run_and_exit(name: str, run: Run, lifeline: int) -> NoReturn:
    """Run the child. Never returns, so that the child runs no code of the parent afterwards."""
    code = 1
    log = LogQueue()
    try:
        revive_listeners()
        log.start()
        code = run(lifeline, log)
    except BaseException as error:
        liveness_logs.part_died(name, error)
    finally:
        log.end_process(LAST_LINES)
        os._exit(code)
