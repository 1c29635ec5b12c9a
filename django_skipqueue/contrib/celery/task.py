"""The Celery task that runs carried jobs in a process of Celery, in a pool as workers have it.

The import of this module registers the task.

Invariant: the task ends after the broker has confirmed the job's outcome, and Celery acknowledges the job's message
after the end of the task. The task rejects a message that it cannot read, so that the broker gives the message back to
the relay. The broker delivers the message of a process that dies again.

After a lost connection the broker delivers unacknowledged messages again. In most cases such a job is over: its outcome
was on its way, and a relay has written it by now. The rows tell whether the job still has to run. Invariant: in doubt
the job runs.

The thread of Celery's task waits. The job runs in a thread of the pool. Such a thread keeps its database connections,
while Celery closes the connections of its own threads after each task. After an interruption the pool replaces it.

A process ends after an attempt in it was interrupted or is stuck. An interruption may have left a lock taken, and a
stuck attempt keeps its thread. Invariant: a process ends while no task runs in it, unless each further job would wait
there for ever.
"""

import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from celery import shared_task
from celery.exceptions import Reject
from celery.signals import celeryd_init, task_postrun, task_prerun, worker_init, worker_process_init
from django.db import Error, connections
from kombu.entity import Queue

from ...queue.store import Store
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...worker.attempts.executor import Executor
from ...worker.attempts.forked_children import children
from ...worker.attempts.pool import Pool
from ...worker.attempts.running_attempt import Interrupter
from ...worker.loop import Wakeup
from ...worker.notes import capturing
from ...worker.own_connections import dedicated_connection, guard
from ...worker.protocol import EXIT_BLOCKED, EXIT_RECYCLED, EXIT_STUCK
from . import logs as carried_logs
from . import wire
from .carrier import alias_of
from .celery_carrier import CELERY_TASK
from .outcome_sender import OutcomeSender
from .rabbitmq import CARRIED_QUEUE
from .settings import carriers

RETIREMENT_IDLE_SECONDS = 0.5
"""Seconds without a task after which a retiring process ends: Celery knows by then that the last task has ended."""


class Retirement:
    """Ends a process in which an attempt was interrupted or is stuck.

    A forked process of Celery's pool ends by itself, and Celery's main process replaces it. A process with a pool of
    threads goes on, since its end would end the other attempts. Once all its slots are stuck it asks Celery for a warm
    shutdown, and the service manager starts it again.
    """

    def __init__(self, worker: str, *, is_forked: bool) -> None:
        self._worker, self._is_forked = worker, is_forked
        self._lock = threading.Lock()
        self._code: int | None = None
        self._is_full = False
        self._running = 0

    def note(self, pool: Pool, interrupter: Interrupter) -> None:
        """Decide whether the process must end. Called after time limits were enforced."""
        self._is_full = len(interrupter.stuck()) > 1 and pool.is_used_up
        if self._code is not None or (interrupter.interrupted_at == NEVER and not pool.is_used_up):
            return
        if self._is_forked:
            self._code = EXIT_STUCK if pool.is_used_up else EXIT_RECYCLED
            self._running = 1  # the task of the interrupted attempt
            task_prerun.connect(self._begins)
            task_postrun.connect(self._ends)
        elif pool.is_used_up:
            self._code = EXIT_STUCK
            carried_logs.carried_process_stops(self._worker)
            os.kill(os.getpid(), signal.SIGTERM)

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
                timer = threading.Timer(RETIREMENT_IDLE_SECONDS, self._end_if_idle)
                timer.daemon = True
                timer.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._running <= 0 and self._code is not None:
                os._exit(self._code)


LONGEST_LIMITS_REST = 60.0
"""Seconds between two checks of the time limits, if no attempt has one."""


class DatabaseJobs:
    """Runs the jobs of one database. `run` is called by the threads of Celery's pool."""

    def __init__(self, *, worker: str, database: str, slots: int, retirement: Retirement) -> None:
        self._worker = worker
        self._retirement = retirement
        self._wakeup = Wakeup()
        self._interrupter = Interrupter(self._wakeup.call)
        executor = Executor(worker=worker, database=database, interrupter=self._interrupter)
        self._pool = Pool(executor, concurrency=slots, wake=self._hand_over_finished)
        self._lock = threading.RLock()  # guards the pool and the following; never held while a job runs
        self._waiting: dict[LeaseRef, list[queue.SimpleQueue[Attempt]]] = {}
        threading.Thread(target=self._enforce_limits, name="skipqueue-limits", daemon=True).start()

    def run(self, job: ClaimedJob) -> Attempt:
        """Run the job. If the broker delivers the job again while it runs here, wait for that attempt."""
        ended: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        with self._lock:
            waiting = self._waiting.setdefault(job.ref, [])
            waiting.append(ended)
            if len(waiting) == 1:
                self._pool.submit([job])
        return ended.get()

    def _hand_over_finished(self) -> None:
        """Give the finished attempts to the threads that wait for them. Called by the threads of the pool."""
        with self._lock:
            try:
                for attempt in self._pool.take_finished():
                    for ended in self._waiting.pop(attempt.job.ref, []):
                        ended.put(attempt)
            except BaseException as error:  # an error of the code that runs attempts, not of a task
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)

    def _wait_until(self, deadline: float) -> None:
        rest = min(max(deadline - time.monotonic(), 0.0), LONGEST_LIMITS_REST)
        self._wakeup.wait(rest, unless=lambda: self._pool.next_deadline < deadline)

    def _enforce_limits(self) -> None:
        """Interrupt attempts whose time is over. A stuck attempt counts as failed, and the pool replaces its thread."""
        while True:
            try:
                self._wait_until(self._pool.next_deadline)
                with self._lock:
                    self._pool.enforce_limits()
                    is_blocked = self._pool.find_blockage()
                    self._retirement.note(self._pool, self._interrupter)
                self._hand_over_finished()
                if is_blocked:
                    os._exit(EXIT_BLOCKED)
            except BaseException as error:  # without time limits, no job may run
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)


class CeleryProcess:
    """Runs the carried jobs of a process of Celery. The first job of the process makes it."""

    def __init__(self, app: Any, *, worker: str, slots: int, is_forked: bool) -> None:
        children.become_worker()
        self._capturing = capturing()  # an attribute, since a context manager without a reference ends
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
        with self._lock:
            jobs = self._databases.get(database)
            if jobs is None:
                jobs = self._databases[database] = DatabaseJobs(
                    worker=self._worker, database=database, slots=self._slots, retirement=self._retirement
                )
        self._sender.send(jobs.run(job), home)

    def note_begun(self, job: ClaimedJob, home: str) -> None:
        """Tell the relay that this job begins, and return once the broker has confirmed the message."""
        self._sender.send_encoded(wire.encode_begun(job.ref, home))


# The task


def is_over(ref: LeaseRef, alias: str) -> bool:
    """Return whether the lease has ended; `False` if the process cannot reach the database."""
    try:
        with dedicated_connection(alias) as connection:
            guard(connection, alias)
            return bool(Store(alias).lost_leases([ref]))
    except Error:
        return False


NO_TIME_LIMIT = 10 * 365 * 24 * 3600
"""Seconds. Only the job's `timeout` applies: Celery would take an attempt that exceeds a limit for a lost worker."""

GREENLETS = ("gevent", "eventlet")
"""Pools of Celery in which jobs cannot run: they replace the threads and selectors that attempts need."""

worker_of_celery: Any = None  # Celery's worker, in its main process
_runs_one = False  # whether this process runs one task at a time
main_process = 0  # the id of Celery's main process, also in the processes that it has forked
_is_forked = False  # whether Celery's pool has forked this process
_process: CeleryProcess | None = None
_making = threading.Lock()


@shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    name=CELERY_TASK,
    acks_late=True,
    acks_on_failure_or_timeout=False,
    acks_on_failure=False,
    acks_on_timeout=False,
    reject_on_worker_lost=True,
    retry_on_worker_lost=False,
    ignore_result=True,
    store_errors_even_if_ignored=False,
    track_started=False,
    rate_limit=0,
    soft_time_limit=NO_TIME_LIMIT,
    time_limit=NO_TIME_LIMIT,
)
def run(self: Any, payload: object) -> None:
    try:
        job, home = wire.job_from_wire(payload)
    except wire.UnknownFormat as error:
        raise Reject(str(error), requeue=False) from error
    database = alias_of(home)
    if database not in connections.settings:
        raise Reject(f"This process has no database {database!r} in DATABASES.", requeue=False)
    process = _process_here(self)
    if (self.request.delivery_info or {}).get("redelivered"):
        if is_over(job.ref, database):
            return
        process.note_begun(job, home)
    process.run(job, database=database, home=home)


def _process_here(task: Any) -> CeleryProcess:
    global _process  # noqa: PLW0603 (the first task of each process makes it, after the fork)
    if _process is None:
        with _making:
            if _process is None:
                worker = task.request.hostname or "celery"
                slots = 1 if _runs_one or worker_of_celery is None else max(int(worker_of_celery.concurrency or 1), 1)
                _process = CeleryProcess(task.app, worker=worker, slots=slots, is_forked=_is_forked)
    return _process


@worker_init.connect  # type: ignore[untyped-decorator]
def note_worker(sender: Any, **_: Any) -> None:
    """Note Celery's worker in its main process, before it makes its pool. Refuse greenlets for carried queues."""
    global worker_of_celery, main_process
    pool = sender.pool_cls if isinstance(sender.pool_cls, str) else sender.pool_cls.__module__
    consumed = sorted(_carried_queues().keys() & sender.app.amqp.queues.consume_from.keys())
    if consumed and any(name in pool for name in GREENLETS):
        sys.exit(
            f"The queues {', '.join(map(repr, consumed))} are carried for django_skipqueue, whose jobs cannot run in "
            f"the pool {pool!r}: it replaces Python's threads. Start this worker with --pool prefork, threads or "
            "solo, or give it other queues."
        )
    worker_of_celery, main_process = sender, os.getpid()
    if not sender.time_limit and not sender.soft_time_limit:  # else the task needs limits that replace the worker's
        run.time_limit = run.soft_time_limit = None  # a limit costs Celery's main process two timers for each task


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _note_process(**_: Any) -> None:
    """Note that this process runs one task at a time, in the pool `prefork` or `solo`."""
    global _runs_one, _is_forked
    _runs_one, _is_forked = True, os.getpid() != main_process


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _declare_as_relays_do(instance: Any, options: dict[str, Any], **_: Any) -> None:
    """Have Celery's worker declare its carried queues with the arguments that relays use.

    Celery needs the arguments also if the carrier has `DECLARE` off: they say that it is a quorum queue. A queue in the
    project's `task_queues` stays as the project has declared it.
    """
    app = instance.app
    named = options.get("queues") or ()
    consumed = {*(named.split(",") if isinstance(named, str) else named), app.conf.task_default_queue}
    carried = _carried_queues()
    own = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    for name in sorted((carried.keys() & consumed) - own):
        queue = Queue(name, routing_key=name, queue_arguments=dict(CARRIED_QUEUE), no_declare=not carried[name])  # type: ignore[no-untyped-call]
        app.amqp.queues.add(queue)


def _carried_queues() -> dict[str, bool]:
    return {queue: carrier.declare for carrier in carriers().values() for queue in carrier.queues.values()}
