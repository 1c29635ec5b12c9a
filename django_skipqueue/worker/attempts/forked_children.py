"""Keeps a process that a task forks from acting as a worker.

Invariant: a forked child ends on the usual signals, uses no database session of the worker, and exits at the end of the
task's function. The child settles nothing, and runs no other job.
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
    """Whether this process is a worker, or was forked by a task of a worker."""

    def __init__(self) -> None:
        self.is_child = False
        self._is_worker = False
        self._in_child: list[Callable[[], object]] = []
        self._inherited: list[Any] = []  # never used, nor deleted: a deletion would end the parent's sessions

    def become_worker(self) -> None:
        """Treat processes that are forked from now on as children."""
        self._is_worker = True

    def call_in_child(self, callback: Callable[[], object]) -> None:
        """Call `callback` in each child, in the thread that forked the child: the child has no other thread."""
        self._in_child.append(callback)

    def __enter__(self) -> None:
        """Begin a block at whose end a child exits, while its parent goes on."""

    def __exit__(self, *_: object) -> None:
        if self.is_child:
            self.leave()

    def keep_in(self, job: ClaimedJob) -> "Children":
        """Middleware. If an attempt forks a child process, the child ends with the attempt."""
        return self

    def leave(self) -> None:
        """Exit from a child at once, with the exit code for the exception being handled."""
        error = sys.exc_info()[1]
        code = 1
        with contextlib.suppress(BaseException):
            code = _exit_code(error)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def after_fork(self) -> None:
        """Prepare the child. Runs in it before any other code."""
        if not self._is_worker:
            return
        self._is_worker, self.is_child = False, True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._leave_sessions()
        for callback in self._in_child:
            callback()

    def _leave_sessions(self) -> None:
        """Detach the inherited connections of this thread, so that Django opens new ones in the child."""
        for inherited in connections.all(initialized_only=True):
            self._inherited.append(inherited)
            del connections[inherited.alias]
            pgconn = getattr(inherited.connection, "pgconn", None)
            if pgconn is not None:
                with contextlib.suppress(Exception), Path(os.devnull).open("r+b") as nothing:
                    os.dup2(nothing.fileno(), pgconn.socket)


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
