"""Runs the control loop of a worker in a thread of the test's process, so that the test can read and change it."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection, connections

from django_skipqueue.jobs.registry import THREADS
from django_skipqueue.worker.attempts.pool import ThreadRunner
from django_skipqueue.worker.attempts.running_attempt import RunningJobs
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.protocol import EXIT_BLOCKED, EXIT_STUCK, STOP, STOP_NOW, encode_command
from django_skipqueue.worker.worker import WorkerLoop

from ..app.waiting import DEADLINE, wait_until


class WorkerThread:
    """Runs a `WorkerLoop` in a thread, without signals. The function `prepare` may change the loop before it runs."""

    def __init__(
        self,
        *,
        prepare: Callable[[WorkerLoop], Any] = lambda worker: None,
        running_jobs: RunningJobs | None = None,
        id: str,
        **options: Any,
    ) -> None:
        self.id = id
        self._running_jobs = running_jobs
        self.options = WorkerOptions(**{"name": "w", "database": "default", **options})
        self.code: int | None = None
        self.worker: WorkerLoop
        self._other_sessions = backends()
        self._prepare = prepare
        self._read_end, self._lifeline = os.pipe()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE)

    @property
    def listens(self) -> bool:
        """Whether the worker's control connection is open and listens for notifications of new jobs."""
        return self.worker.control.listens and self.worker.control.fileno() is not None

    def cut(self) -> None:
        """Cut the worker's control connection, as a restart of the server would."""
        wait_until(lambda: self.listens)
        terminate([self.worker.control.wrapper.connection.info.backend_pid])

    def sessions(self) -> list[int]:
        """The process ids of the worker's sessions in PostgreSQL, except the session of its control connection."""
        control = self.worker.control.wrapper.connection.info.backend_pid
        return sorted(backends() - self._other_sessions - {control})

    def stop(self, *, now: bool = False) -> None:
        """Send the command by which a supervisor stops a worker."""
        os.write(self._lifeline, encode_command(STOP_NOW if now else STOP))

    def abandon(self) -> None:
        """Close the pipe, as happens when the supervisor is killed."""
        os.close(self._lifeline)
        self._lifeline = -1

    def wait(self, *, deadline: float = DEADLINE) -> int:
        """Wait until the loop has ended. Returns the exit code."""
        self._thread.join(deadline)
        assert not self._thread.is_alive(), f"The worker did not end within {deadline:g} s."
        assert self.code is not None
        return self.code

    def end(self) -> None:
        """Stop the loop and close its pipe, also after a failed test."""
        if self._lifeline >= 0:
            if self._thread.is_alive():
                self.stop(now=True)
            self._thread.join(DEADLINE)
            os.close(self._lifeline)
        self._thread.join(DEADLINE)
        os.close(self._read_end)
        if self.code in (EXIT_STUCK, EXIT_BLOCKED):
            self.worker.pool.stop()  # the worker does not stop its threads, because they usually end with its process
        threads = self.worker.pool.runners[THREADS]
        assert isinstance(threads, ThreadRunner)
        wait_until(lambda: not threads.stuck, "what was stuck has ended")
        if not self._thread.is_alive():
            self.worker.wakeup.close()

    def _run(self) -> None:
        self.worker = WorkerLoop(
            self.options, id=self.id, name=self.options.name, lifeline=self._read_end, running_jobs=self._running_jobs
        )
        self.worker.wakeup.on_signals = lambda *_: None  # type: ignore[method-assign]  # only for main threads
        self._prepare(self.worker)
        self._ready.set()
        try:
            self.code = self.worker.run()
        except BaseException:
            self.code = 1
            raise
        finally:
            connections.close_all()


def backends() -> set[int]:
    """The process ids of all other sessions in this database. A web server that a test has started may have one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in cursor.fetchall()}


def terminate(pids: Sequence[int]) -> None:
    """Cut connections, and wait until the server has ended their sessions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [list(pids)])
    wait_until(lambda: not _exist(pids), "the connections are cut")


def _exist(pids: Sequence[int]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", [list(pids)])
        return bool(cursor.fetchone()[0])
