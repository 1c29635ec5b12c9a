"""The Celery task that runs carried jobs. Registers itself when this module is imported.

Invariant: the task ends after the broker has confirmed the job's outcome, and Celery acknowledges the job's message
after the end of the task. A message that this side cannot read is rejected, so that the broker gives it back to the
relay; one whose process dies is delivered again.

After a lost connection the broker delivers again what was not acknowledged. Such a job is over in most cases: its
outcome was on its way, and is written by now. The rows tell whether it still has to run. Invariant: in doubt the job
runs.
"""

import os
import sys
import threading
from collections.abc import Collection, Iterable
from typing import Any

from celery import shared_task
from celery.exceptions import Reject
from celery.signals import celeryd_init, worker_init, worker_process_init
from django.db import Error, connections
from kombu.entity import Queue

from ...queue.store import Store
from ...values.records import LeaseRef
from ...worker.own_connections import dedicated_connection, guard
from . import topology, wire
from .carrier import alias_of
from .celery_carrier import TASK
from .conf import carriers
from .running import Process


def is_over(ref: LeaseRef, alias: str) -> bool:
    """Whether the lease has ended. `False` too if the database cannot say: Celery's workers need not reach it."""
    try:
        with dedicated_connection(alias) as connection:
            guard(connection, alias)
            return bool(Store(alias).lost_leases([ref]))
    except Error:
        return False


NO_LIMIT = 10 * 365 * 24 * 3600
"""Seconds. Celery's limits do not apply: the job's `timeout` does, which Celery would take for a lost worker."""

GREENLETS = ("gevent", "eventlet")
"""The pools of Celery in which jobs cannot run: they replace the threads and selectors that these are run with."""

_worker: Any = None  # Celery's, in its main process
_runs_one = False  # whether this process runs one task at once
_main_process = 0  # its id, also in the processes that it has forked
_is_forked = False  # whether Celery's pool has forked this process
_process: Process | None = None
_making = threading.Lock()


@shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    name=TASK,
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
    soft_time_limit=NO_LIMIT,
    time_limit=NO_LIMIT,
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


def _process_here(task: Any) -> Process:
    global _process  # noqa: PLW0603 (one for each process: made after the fork, by its first task)
    if _process is None:
        with _making:
            if _process is None:
                worker = task.request.hostname or "celery"
                _process = Process(task.app, worker=worker, slots=_slots(), is_forked=_is_forked)
    return _process


def _slots() -> int:
    return 1 if _runs_one or _worker is None else max(int(_worker.concurrency or 1), 1)


@worker_init.connect  # type: ignore[untyped-decorator]
def _note_worker(sender: Any, **_: Any) -> None:
    """Called in the main process, before the pool is made."""
    global _worker, _main_process
    _require_pool(sender)
    _worker, _main_process = sender, os.getpid()
    if not sender.time_limit and not sender.soft_time_limit:  # else limits of our own keep these away
        run.time_limit = run.soft_time_limit = None  # a limit takes Celery's main process two timers for each task


def _require_pool(worker: Any) -> None:
    """End a worker of Celery that consumes from carried queues, and whose pool runs tasks in greenlets."""
    pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
    consumed = sorted(_carried_queues().keys() & worker.app.amqp.queues.consume_from.keys())
    if consumed and any(name in pool for name in GREENLETS):
        sys.exit(
            f"The queues {', '.join(map(repr, consumed))} are carried for django_skipqueue, whose jobs cannot run in "
            f"the pool {pool!r}: it replaces Python's threads. Start this worker with --pool prefork, threads or "
            "solo, or give it other queues."
        )


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _note_process(**_: Any) -> None:
    """Called where one task runs at once: in each process of `prefork`, and in the main process of the pool `solo`."""
    global _runs_one, _is_forked
    _runs_one, _is_forked = True, os.getpid() != _main_process


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _declare_as_relays_do(instance: Any, options: dict[str, Any], **_: Any) -> None:
    """Have Celery's worker declare the carried queues that it consumes from with the arguments that relays use.

    If somebody else declares a queue, Celery still has to know by its arguments that it is a quorum queue. A queue that
    the project lists in `task_queues` stays as the project has declared it.
    """
    app = instance.app
    consumed = {*_names(options.get("queues")), app.conf.task_default_queue}
    carried = _carried_queues()
    own = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    for name in sorted((carried.keys() & consumed) - own):
        queue = Queue(
            name, routing_key=name, queue_arguments=dict(topology.CARRIED_QUEUE), no_declare=not carried[name]
        )  # type: ignore[no-untyped-call]
        app.amqp.queues.add(queue)


def _carried_queues() -> dict[str, bool]:
    """Celery's queues that are carried, and whether Celery and relays declare each."""
    return {queue: carrier.declare for carrier in carriers().values() for queue in carrier.queues.values()}


def _names(queues: str | Iterable[str] | None) -> Collection[str]:
    if queues is None:
        return ()
    return queues.split(",") if isinstance(queues, str) else list(queues)
