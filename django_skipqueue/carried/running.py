"""Runs carried jobs in a process of Celery: with the pool of a worker, its time limits and its threads.

The thread of Celery's task waits. The job runs in a thread of the pool, which keeps its database connections (Celery
closes those of its own threads after each task), and which is replaced after an interruption.

Invariant: once `run` has returned, the broker has the outcome.
"""

import os
import queue
import threading
import time
from typing import Any

from ..events import carried_logs
from ..execution.executor import Executor
from ..execution.forked_children import children
from ..execution.interruption import Interrupter
from ..execution.pool import Pool
from ..notes.log_capture import capturing
from ..relay import wire
from ..runtime.protocol import EXIT_BLOCKED
from ..runtime.wakeup import Wakeup
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .outcome_sender import OutcomeSender
from .retirement import Retirement

LONGEST_REST = 60.0
"""Seconds between two looks at the time limits, if no attempt has one."""


class DatabaseJobs:
    """Runs the jobs of one database. `run` is called by the threads of Celery's pool."""

    def __init__(self, *, worker: str, database: str, slots: int, retirement: Retirement) -> None:
        self._worker = worker
        self._retirement = retirement
        self._wakeup = Wakeup()
        self._interrupter = Interrupter(self._wakeup.call)
        executor = Executor(worker=worker, database=database, interrupter=self._interrupter)
        self._pool = Pool(executor, concurrency=slots, wake=self._hand_in)
        self._lock = threading.RLock()  # guards the pool and the following; never held while a job runs
        self._waiting: dict[LeaseRef, list[queue.SimpleQueue[Attempt]]] = {}
        threading.Thread(target=self._enforce_limits, name="skipqueue-limits", daemon=True).start()

    def run(self, job: ClaimedJob) -> Attempt:
        """Run the job. If it is delivered again while it runs here, it is not started again."""
        ended: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        with self._lock:
            waiting = self._waiting.setdefault(job.ref, [])
            waiting.append(ended)
            if len(waiting) == 1:
                self._pool.submit([job])
        return ended.get()

    def _hand_in(self) -> None:
        """Give the finished attempts to the threads that wait for them. Called by the threads of the pool."""
        with self._lock:
            try:
                for attempt in self._pool.take_finished():
                    for ended in self._waiting.pop(attempt.job.ref, []):
                        ended.put(attempt)
            except BaseException as error:  # of the code that runs attempts, not of a task
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)

    def _rest(self, deadline: float) -> None:
        rest = min(max(deadline - time.monotonic(), 0.0), LONGEST_REST)
        self._wakeup.wait(rest, unless=lambda: self._pool.next_deadline < deadline)

    def _enforce_limits(self) -> None:
        """Interrupt attempts whose time is over. A stuck one counts as failed, and its thread is replaced."""
        while True:
            try:
                self._rest(self._pool.next_deadline)
                with self._lock:
                    self._pool.enforce_limits()
                    is_blocked = self._pool.find_blockage()
                    self._retirement.note(self._pool, self._interrupter)
                self._hand_in()
                if is_blocked:
                    os._exit(EXIT_BLOCKED)
            except BaseException as error:  # without time limits, no job may run
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)


class Process:
    """What a process of Celery has for carried jobs. Made in the process that uses it, at its first job."""

    def __init__(self, app: Any, *, worker: str, slots: int, is_forked: bool) -> None:
        children.become_worker()
        self._capturing = capturing()  # kept: a context manager that nobody refers to ends
        self._capturing.__enter__()
        self._worker = worker
        self._slots = slots
        self._sender = OutcomeSender(app, who=worker)
        self._retirement = Retirement(worker, is_forked=is_forked)
        self._databases: dict[str, DatabaseJobs] = {}
        self._lock = threading.Lock()

    def run(self, job: ClaimedJob, *, database: str, home: str) -> None:
        """Run a job of this database, and send its outcome to this home."""
        self._retirement.require_room()
        self._sender.send(self._jobs_of(database).run(job), home)

    def note_begun(self, job: ClaimedJob, home: str) -> None:
        """Tell the relay that this job begins, and return once the broker has that."""
        self._sender.send_encoded(wire.encode_begun(job.ref, home))

    def _jobs_of(self, database: str) -> DatabaseJobs:
        with self._lock:
            if database not in self._databases:
                self._databases[database] = DatabaseJobs(
                    worker=self._worker, database=database, slots=self._slots, retirement=self._retirement
                )
            return self._databases[database]
