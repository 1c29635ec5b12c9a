"""Runs carried jobs in a process of Celery: with the pool of a worker, its time limits and its threads.

The thread of Celery's task waits. The job runs in a thread of the pool, which keeps its database connections (Celery
closes those of its own threads after each task), and which is replaced after an interruption.

Invariant: once `run` has returned, the broker has the outcome.

A process in which an attempt was interrupted or is stuck ends, as a worker's process is replaced. An interruption may
have left a lock taken, and a stuck attempt keeps its thread. Invariant: a process ends while no task runs in it, unless
each further job would wait there for ever.
"""

import os
import queue
import signal
import threading
import time
from typing import Any

from celery.signals import task_postrun, task_prerun

from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...worker.attempts.executor import Executor
from ...worker.attempts.forked_children import children
from ...worker.attempts.pool import Pool
from ...worker.attempts.running_attempt import Interrupter
from ...worker.loop import Wakeup
from ...worker.notes import capturing
from ...worker.protocol import EXIT_BLOCKED, EXIT_RECYCLED, EXIT_STUCK
from . import logs as carried_logs
from . import wire
from .outcome_sender import OutcomeSender

IDLE_SECONDS = 0.5
"""Seconds without a task, after which the process ends: Celery's main process knows that its last task has ended."""


class Retirement:
    """A forked process of Celery's pool ends by itself, and its main process replaces it.

    A process with a pool of threads goes on: to end it would end the other attempts. Once all its slots are stuck it
    asks Celery for a warm shutdown, and whoever has started it starts it again.
    """

    def __init__(self, worker: str, *, is_forked: bool) -> None:
        self._worker = worker
        self._is_forked = is_forked
        self._lock = threading.Lock()
        self._code: int | None = None
        self._is_full = False
        self._running = 0
        self._timer: threading.Timer | None = None

    def note(self, pool: Pool, interrupter: Interrupter) -> None:
        """Decide whether the process must end. Called after time limits were enforced."""
        self._is_full = len(interrupter.stuck()) > 1 and pool.is_used_up
        if self._code is not None or (interrupter.interrupted_at == NEVER and not pool.is_used_up):
            return
        if self._is_forked:
            self._code = EXIT_STUCK if pool.is_used_up else EXIT_RECYCLED
            self._running = 1  # the task of that attempt
            task_prerun.connect(self._begins)
            task_postrun.connect(self._ends)
        elif pool.is_used_up:
            self._code = EXIT_STUCK
            carried_logs.carried_process_stops(self._worker)
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def is_due(self) -> bool:
        return self._code is not None

    def require_room(self) -> None:
        """End the process if a further job would wait for ever. The broker delivers the job again."""
        if self._is_full and self._is_forked:
            os._exit(EXIT_STUCK)

    def _begins(self, **_: Any) -> None:
        with self._lock:
            self._running += 1

    def _ends(self, **_: Any) -> None:
        with self._lock:
            self._running -= 1
            if self._running <= 0:
                self._timer = threading.Timer(IDLE_SECONDS, self._end_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._running <= 0 and self._code is not None:
                os._exit(self._code)


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
