"""The Celery task that runs carried jobs. Registers itself when this module is imported.

Invariant: the job's message is acknowledged after its outcome is confirmed. A message that this side cannot read is
rejected, so that the broker gives it back to the relay; one whose process dies is delivered again.
"""

import os
import threading
from collections.abc import Collection, Iterable
from typing import Any

import kombu
from celery import shared_task
from celery.exceptions import Reject
from celery.signals import celeryd_init, worker_init, worker_process_init, worker_ready
from kombu.entity import Queue

from ..conf import settings
from ..relay import wire
from ..relay.carrier import alias_of
from ..relay.celery_carrier import TASK
from ..relay.rabbitmq import topology
from .redelivery import is_over
from .return_path import Gate, ReturnPath
from .running import Give, Process

NO_LIMIT = 10 * 365 * 24 * 3600
"""Seconds. Celery's limits do not apply: the job's `timeout` does, which Celery would take for a lost worker."""

HUB_WAKES = kombu.VERSION >= (5, 7)
"""Whether another thread can have Celery's main process acknowledge a message at once."""


def _nobody(*_: Any) -> bool:
    return False


_worker: Any = None  # Celery's, in its main process
_runs_one = False  # whether this process runs one task at once
_main_process = 0  # its id, also in the processes that it has forked
_is_forked = False  # whether Celery's pool has forked this process
_give: Give = _nobody  # see `Process`; a forked process has that of the main process at first
_gate = Gate()
_process: Process | None = None
_making = threading.Lock()


@shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    name=TASK,
    Request="django_skipqueue.carried.main_process:CarriedRequest",
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
    process = _process_here(self)
    if (self.request.delivery_info or {}).get("redelivered"):
        if is_over(job.ref, alias_of(home)):
            return
        process.note_begun(job, home)
    process.run(job, home)


def _process_here(task: Any) -> Process:
    global _process  # noqa: PLW0603 (one for each process: made after the fork, by its first task)
    if _process is None:
        with _making:
            if _process is None:
                worker = task.request.hostname or "celery"
                _process = Process(task.app, worker=worker, slots=_slots(), is_forked=_is_forked, give=_give)
    return _process


def _slots() -> int:
    return 1 if _runs_one or _worker is None else max(int(_worker.concurrency or 1), 1)


@worker_init.connect  # type: ignore[untyped-decorator]
def _note_worker(sender: Any, **_: Any) -> None:
    """Called in the main process, before the pool is made."""
    global _worker, _main_process, _give  # noqa: PLW0603
    from .main_process import outcomes  # here: it imports Celery's worker

    _worker, _main_process = sender, os.getpid()
    if HUB_WAKES:
        outcomes.serve(sender, _gate)
        worker_ready.connect(lambda **_: outcomes.watch_loop(), weak=False)
        _give = outcomes.hold
    if not sender.time_limit and not sender.soft_time_limit:  # else limits of our own keep these away
        run.time_limit = run.soft_time_limit = None  # a limit takes Celery's main process two timers for each task


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _note_process(**_: Any) -> None:
    """Called where one task runs at once: in each process of `prefork`, and in the main process of the pool `solo`."""
    global _runs_one, _is_forked, _give  # noqa: PLW0603
    _runs_one, _is_forked = True, os.getpid() != _main_process
    if _is_forked and _give is not _nobody:
        _give = ReturnPath(run, _gate).give


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _declare_as_relays_do(instance: Any, options: dict[str, Any], **_: Any) -> None:
    """Have Celery's worker declare the carried queues that it consumes from with the arguments that relays use.

    A queue that the project lists in `task_queues` stays as the project has declared it.
    """
    app = instance.app
    consumed = {*_names(options.get("queues")), app.conf.task_default_queue}
    ours = {queue for carrier in settings.carriers.values() if carrier.declare for queue in carrier.queues.values()}
    own = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    for name in sorted((consumed & ours) - own):
        queue = Queue(name, routing_key=name, queue_arguments=dict(topology.CARRIED_QUEUE))  # type: ignore[no-untyped-call]
        app.amqp.queues.add(queue)


def _names(queues: str | Iterable[str] | None) -> Collection[str]:
    if queues is None:
        return ()
    return queues.split(",") if isinstance(queues, str) else list(queues)
