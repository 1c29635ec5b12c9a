"""The Celery task that runs jobs of a carrier in a Celery process, in the same kind of pool as a worker.

Importing this module registers the task.

The task ends after the broker has confirmed the job's outcome, and only then does Celery acknowledge the job's message.
If the task cannot read a message, it rejects it, and the broker gives it back to the relay. If a process dies, the
broker delivers the process's messages again.

After a lost connection, the broker also delivers unacknowledged messages again. Usually their jobs have ended, because
an outcome was already on its way. So the task checks in the database whether the job still has to run; in doubt it
runs.

Celery's thread waits while the job runs in a thread of the pool. The pool's threads keep their database connections,
while Celery closes those of its own threads after each task. After an interruption, the pool replaces the thread.

After an attempt was interrupted or is stuck, its process ends, because an interruption may leave a lock held, and a
stuck attempt keeps its thread. The process ends when no task runs in the process, or immediately if every further job
would wait for ever.
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
"""A retiring process ends after this many seconds without a task, so that Celery has noticed the last task's end."""


class Retirement:
    """Ends a process in which an attempt was interrupted or is stuck.

    A forked process of Celery's pool simply ends, and Celery's main process replaces it. A process with a pool of
    threads continues, because its end would also end other attempts. Once all of its slots are stuck, it asks Celery
    for a warm shutdown, and the service manager starts it again.
    """

    def __init__(self, worker: str, *, is_forked: bool) -> None:
        self._worker, self._is_forked = worker, is_forked
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        self._are_all_slots_stuck = False
        self._running_tasks = 0

    def note(self, pool: Pool, interrupter: Interrupter) -> None:
        """Decide whether the process must end. Called each time after time limits were enforced."""
        self._are_all_slots_stuck = len(interrupter.stuck()) > 1 and pool.is_used_up
        if self._exit_code is not None or (interrupter.interrupted_at == NEVER and not pool.is_used_up):
            return
        if self._is_forked:
            self._exit_code = EXIT_STUCK if pool.is_used_up else EXIT_RECYCLED
            self._running_tasks = 1  # the task of the interrupted attempt
            task_prerun.connect(self._count_begun_task)
            task_postrun.connect(self._count_ended_task)
        elif pool.is_used_up:
            self._exit_code = EXIT_STUCK
            carried_logs.carried_process_stops(self._worker)
            os.kill(os.getpid(), signal.SIGTERM)

    def require_room(self) -> None:
        """End the process if another job would wait for ever. The broker delivers that job again."""
        if self._are_all_slots_stuck and self._is_forked:
            os._exit(EXIT_STUCK)

    def _count_begun_task(self, **_: Any) -> None:
        with self._lock:
            self._running_tasks += 1

    def _count_ended_task(self, **_: Any) -> None:
        with self._lock:
            self._running_tasks -= 1
            if self._running_tasks <= 0:
                timer = threading.Timer(RETIREMENT_IDLE_SECONDS, self._end_if_idle)
                timer.daemon = True
                timer.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._running_tasks <= 0 and self._exit_code is not None:
                os._exit(self._exit_code)


LONGEST_LIMITS_REST = 60.0
"""Seconds between two checks of time limits, if no attempt has a time limit."""


class DatabaseJobs:
    """Runs the jobs of one database. The threads of Celery's pool call `run`."""

    def __init__(self, *, worker: str, database: str, slots: int, retirement: Retirement) -> None:
        self._worker = worker
        self._retirement = retirement
        self._wakeup = Wakeup()
        self._interrupter = Interrupter(self._wakeup.call)
        executor = Executor(worker=worker, database=database, interrupter=self._interrupter)
        self._pool = Pool(executor, concurrency=slots, wake=self._hand_over_finished)
        self._lock = threading.RLock()  # guards the pool and `_waiting`; never held while a job runs
        self._waiting: dict[LeaseRef, list[queue.SimpleQueue[Attempt]]] = {}
        threading.Thread(target=self._enforce_limits, name="skipqueue-limits", daemon=True).start()

    def run(self, job: ClaimedJob) -> Attempt:
        """Run the job. If it already runs here because the broker has delivered it twice, wait for that attempt."""
        attempt_queue: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        with self._lock:
            waiting_queues = self._waiting.setdefault(job.ref, [])
            waiting_queues.append(attempt_queue)
            if len(waiting_queues) == 1:
                self._pool.submit([job])
        return attempt_queue.get()

    def _hand_over_finished(self) -> None:
        """Give finished attempts to the threads that wait for them. The threads of the pool call this."""
        with self._lock:
            try:
                for attempt in self._pool.take_finished():
                    for attempt_queue in self._waiting.pop(attempt.job.ref, []):
                        attempt_queue.put(attempt)
            except BaseException as error:  # an error of the code that runs attempts, not of a task
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)

    def _wait_until(self, deadline: float) -> None:
        seconds = min(max(deadline - time.monotonic(), 0.0), LONGEST_LIMITS_REST)
        self._wakeup.wait(seconds, unless=lambda: self._pool.next_deadline < deadline)

    def _enforce_limits(self) -> None:
        """Interrupt attempts that exceed their time limit. A stuck attempt fails, and the pool replaces its thread."""
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
            except BaseException as error:  # no job may run without enforced time limits
                carried_logs.carried_process_ends(self._worker, error)
                os._exit(1)


class CeleryProcess:
    """Runs the jobs of a Celery process. It is created when the first job of the process arrives."""

    def __init__(self, app: Any, *, worker: str, slots: int, is_forked: bool) -> None:
        children.become_worker()
        self._capturing = capturing()  # an attribute, because an unreferenced context manager would be closed
        self._capturing.__enter__()
        self._worker = worker
        self._slots = slots
        self._sender = OutcomeSender(app, who=worker)
        self._retirement = Retirement(worker, is_forked=is_forked)
        self._databases: dict[str, DatabaseJobs] = {}
        self._lock = threading.Lock()

    def run(self, job: ClaimedJob, *, database: str, home: str) -> None:
        """Run a job of this database, and send its outcome to `home`."""
        self._retirement.require_room()
        with self._lock:
            jobs = self._databases.get(database)
            if jobs is None:
                jobs = self._databases[database] = DatabaseJobs(
                    worker=self._worker, database=database, slots=self._slots, retirement=self._retirement
                )
        self._sender.send(jobs.run(job), home)

    def note_begun(self, job: ClaimedJob, home: str) -> None:
        """Tell the relay that this job begins. Returns once the broker has confirmed the message."""
        self._sender.send_encoded(wire.encode_begun(job.ref, home))


# The task


def is_over(ref: LeaseRef, alias: str) -> bool:
    """Return whether the lease has ended; False if the database cannot be reached."""
    try:
        with dedicated_connection(alias) as connection:
            guard(connection, alias)
            return bool(Store(alias).lost_leases([ref]))
    except Error:
        return False


NO_TIME_LIMIT = 10 * 365 * 24 * 3600
"""In seconds. Only the job's `timeout` may apply, because Celery treats an exceeded limit like a lost worker."""

GREENLETS = ("gevent", "eventlet")
"""Celery pools in which jobs cannot run, because they replace the threads and selectors that attempts need."""

worker_of_celery: Any = None  # Celery's worker, in its main process
_runs_one_task = False  # whether this process runs one task at a time
main_process = 0  # the process id of Celery's main process; forked processes inherit the value
_is_forked = False  # whether Celery's pool has forked this process
_process: CeleryProcess | None = None
_process_lock = threading.Lock()


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
    if (self.request.delivery_info or {}).get("redelivered"):  # another process may have begun, or ended, the job
        if is_over(job.ref, database):
            return
        process.note_begun(job, home)
    process.run(job, database=database, home=home)


def _process_here(task: Any) -> CeleryProcess:
    """Return this process's `CeleryProcess`. The first task in the process makes it."""
    global _process  # noqa: PLW0603 (made by the first task of each process, after the fork)
    if _process is None:
        with _process_lock:
            if _process is None:
                worker = task.request.hostname or "celery"
                slots = (
                    1 if _runs_one_task or worker_of_celery is None else max(int(worker_of_celery.concurrency or 1), 1)
                )
                _process = CeleryProcess(task.app, worker=worker, slots=slots, is_forked=_is_forked)
    return _process


@worker_init.connect  # type: ignore[untyped-decorator]
def note_worker(sender: Any, **_: Any) -> None:
    """Remember Celery's worker in its main process, before it makes its pool. Refuse greenlet pools for our queues."""
    global worker_of_celery, main_process
    pool = sender.pool_cls if isinstance(sender.pool_cls, str) else sender.pool_cls.__module__
    carried_names = sorted(_carried_queues().keys() & sender.app.amqp.queues.consume_from.keys())
    if carried_names and any(name in pool for name in GREENLETS):
        sys.exit(
            f"The queues {', '.join(map(repr, carried_names))} contain jobs of django_skipqueue, which cannot run in "
            f"the pool {pool!r}, because it replaces Python's threads. Start this worker with --pool prefork, threads "
            "or solo, or give it other queues."
        )
    worker_of_celery, main_process = sender, os.getpid()
    if not sender.time_limit and not sender.soft_time_limit:  # otherwise the task's limits must override the worker's
        run.time_limit = run.soft_time_limit = None  # a limit would cost Celery's main process two timers per task


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _note_process(**_: Any) -> None:
    """Remember that this process runs one task at a time, in the pool `prefork` or `solo`."""
    global _runs_one_task, _is_forked
    _runs_one_task, _is_forked = True, os.getpid() != main_process


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _declare_queues_like_relays(instance: Any, options: dict[str, Any], **_: Any) -> None:
    """Make Celery's worker declare the queues of carriers with the same arguments as relays.

    Even if the carrier has `DECLARE` off, Celery needs the arguments to know that these are quorum queues. Queues in
    the project's `task_queues` are not changed.
    """
    app = instance.app
    chosen_names = options.get("queues") or ()
    consumed_names = {
        *(chosen_names.split(",") if isinstance(chosen_names, str) else chosen_names),
        app.conf.task_default_queue,
    }
    carried_queues = _carried_queues()
    names_of_project = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    for name in sorted((carried_queues.keys() & consumed_names) - names_of_project):
        queue = Queue(name, routing_key=name, queue_arguments=dict(CARRIED_QUEUE), no_declare=not carried_queues[name])  # type: ignore[no-untyped-call]
        app.amqp.queues.add(queue)


def _carried_queues() -> dict[str, bool]:
    """Return the Celery queues of all carriers, each with whether Celery's workers declare it."""
    return {queue: carrier.declare for carrier in carriers().values() for queue in carrier.queues.values()}
