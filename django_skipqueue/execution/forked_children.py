"""A process that a task forks is not a worker.

Invariant: such a child ends by the signals that end any process, uses none of the worker's sessions, and leaves when
the task's function ends in it: it settles nothing, and runs no other job.
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

from ..values.records import ClaimedJob


class Children:
    """What there is to know in a process about whether it is a worker, or was forked by a task in one."""

    def __init__(self) -> None:
        self.is_child = False
        self._is_worker = False
        self._in_child: list[Callable[[], object]] = []
        self._inherited: list[Any] = []  # never used, and never deleted: that would end the parent's sessions

    def become_worker(self) -> None:
        """Have what is forked from here on be a child."""
        self._is_worker = True

    def call_in_child(self, callback: Callable[[], object]) -> None:
        """Have this called in each child, in the thread that has forked it, which is its only one."""
        self._in_child.append(callback)

    def __enter__(self) -> None:
        """Begin a block that a child does not leave: where its parent leaves it, the child ends."""

    def __exit__(self, *_: object) -> None:
        if self.is_child:
            self.leave()

    def keep_in(self, job: ClaimedJob) -> "Children":
        """Middleware: a child forked in an attempt ends with it."""
        return self

    def leave(self) -> None:
        """End a child with the exit code that the exception being handled asks for. It runs nothing on its way out."""
        error = sys.exc_info()[1]
        code = 1
        with contextlib.suppress(BaseException):
            code = _exit_code(error)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def after_fork(self) -> None:
        """In the child, before anything else."""
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
        """Have Django open connections of the child's own, and have those of its thread end with the worker."""
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
