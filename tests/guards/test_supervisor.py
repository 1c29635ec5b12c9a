"""A supervisor recovers the jobs of dead workers, and looks for jobs about which no worker got a notification."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from django.db import connections

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor import calls
from django_skipqueue.supervisor.calls import WatchQueues
from django_skipqueue.supervisor.processes import DeadProcess, WorkerProcess
from django_skipqueue.supervisor.recover import RecoverOwn
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.control_connection import ControlConnection
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.protocol import PROMISE, SharedCounts

from ..app.rows import make_job, state
from ..app.sessions import Session

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

POLL_INTERVAL = 30.0

# The argument of `run` is the time of a clock in seconds. The tests begin at 100.


def test_locked_jobs_of_a_dead_process_are_recovered_once_they_are_free(
    session: Callable[[], Session], worker_id: str
) -> None:
    job = make_job("running", locked_by=worker_id)
    dead_process = DeadProcess(worker_id, code=-9, cause="signal 9 (SIGKILL)", job_ids=[job.pk], no_statement_after=0.0)
    service = RecoverOwn(store, [WorkerProcess("w", 1, awaiting_recovery=[dead_process])])
    locker = session()
    locker.begin()
    locker(lambda: list(Job.objects.select_for_update()))
    service.run(100.0)
    assert 100.0 < service.due_at < NEVER
    locker.rollback()
    service.run(service.due_at)
    assert state(job)["status"] == "scheduled"


@pytest.fixture
def process() -> WorkerProcess:
    """A worker process with one slot, which is free."""
    process = WorkerProcess("w", 1)
    process.pid, process.shared = os.getpid(), SharedCounts()
    process.shared.offer(slots=1, room=1, claimed=0)
    return process


@pytest.fixture
def queues_found_by_look() -> list[list[str]]:
    """Lists the queues with jobs that each look of the supervisor has found."""
    return []


@pytest.fixture
def watch_queues(process: WorkerProcess, queues_found_by_look: list[list[str]]) -> Iterator[WatchQueues]:
    """The service of a supervisor that gets no notifications."""
    connection_before, alarm_handler = connections["default"], signal.getsignal(signal.SIGALRM)
    control = ControlConnection(store, who="test")
    options = WorkerOptions(name="w", database="default", listen=False, poll_interval=POLL_INTERVAL)
    yield WatchQueues(
        store, control, [process], options, queues_found=lambda names, paused: queues_found_by_look.append(names)
    )
    control.close()
    connections["default"] = connection_before
    signal.signal(signal.SIGALRM, alarm_handler)


def test_a_job_that_nobody_was_notified_of_is_found_by_the_next_look(
    watch_queues: WatchQueues, queues_found_by_look: list[list[str]]
) -> None:
    watch_queues.run(100.0)
    make_job()
    watch_queues.run(100.0 + POLL_INTERVAL)
    assert queues_found_by_look == [[], ["default"]]


def test_the_promise_to_call_a_worker_ends_by_itself(watch_queues: WatchQueues, process: WorkerProcess) -> None:
    watch_queues.run(100.0)
    watch_queues.run(100.5)
    assert 0 < process.shared.watched_until - time.monotonic() <= PROMISE


def test_slow_looks_for_jobs_take_a_tenth_of_the_supervisors_time(
    watch_queues: WatchQueues, queues_found_by_look: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 7.0])  # before and after the look: it takes 7 s, so the next look comes 70 s later
    monkeypatch.setattr(Store, "queues_with_jobs", lambda self, **_: [])
    with monkeypatch.context() as patch:
        patch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: next(clock, 7.0)))
        watch_queues.run(100.0)
    watch_queues.run(100.0 + POLL_INTERVAL)
    watch_queues.run(169.0)
    assert len(queues_found_by_look) == 1
    watch_queues.run(170.0)
    assert len(queues_found_by_look) == 2
