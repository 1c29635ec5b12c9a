"""Keep a process that a task forks from acting as a worker.

The child process ends on the usual signals, and does not use the worker's database sessions. It exits at the end of the
task's function, so that it writes no outcome, and runs no other job.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connections

from ...values.records import ClaimedJob


class Children:
    """Knows whether this process is a worker, or a child process that a task has forked."""

    def __init__(self) -> None:
        self.is_child = False
        self._is_worker = False
        self._in_child: list[Callable[[], object]] = []
        self._inherited: list[Any] = []  # kept, because deleting them would end the parent's sessions

    def become_worker(self) -> None:
        """Note that this process is a worker, so that processes which it forks from now on are child processes."""
        self._is_worker = True

    def call_in_child(self, callback: Callable[[], object]) -> None:
        """Call `callback` in each child process, in the child's only thread."""
        self._in_child.append(callback)

    def __enter__(self) -> None:
        """Begin a block. At the end of the block, a child process exits, and the worker process continues."""

    def __exit__(self, *_: object) -> None:
        if self.is_child:
            self.leave()

    def keep_in(self, job: ClaimedJob) -> "Children":
        """A middleware. If an attempt forks a child process, the child exits at the end of the attempt."""
        return self

    def leave(self) -> None:
        """Exit from the child process at once. The exit code depends on the exception that is being handled."""
        error = sys.exc_info()[1]
        code = 1
        with contextlib.suppress(BaseException):
            code = _exit_code(error)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def after_fork(self) -> None:
        """Prepare the child process. Runs there before any other code."""
        if not self._is_worker:
            return
        self._is_worker, self.is_child = False, True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for signal_number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._leave_sessions()
        for callback in self._in_child:
            callback()

    def _leave_sessions(self) -> None:
        """Detach the connections that the child process has inherited, so that Django opens new connections."""
        for inherited in connections.all(initialized_only=True):
            self._inherited.append(inherited)
            del connections[inherited.alias]
            pgconn = getattr(inherited.connection, "pgconn", None)
            if pgconn is not None:
                with contextlib.suppress(Exception), Path(os.devnull).open("r+b") as devnull:
                    os.dup2(devnull.fileno(), pgconn.socket)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    traceback.print_exception(error)
    return 1


children = Children()
os.register_at_fork(after_in_child=children.after_fork)
