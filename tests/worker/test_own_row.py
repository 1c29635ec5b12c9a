"""`OwnRow`: a worker writes its heartbeat if its supervisor does not, and claims jobs only with a fresh heartbeat."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store
from django_skipqueue.worker import control_connection
from django_skipqueue.worker.control_loop import OwnRow
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.protocol import SharedCounts

from ..app import jobs, worker_jobs
from ..app.rows import are_in_order
from ..app.sessions import Session
from ..app.waiting import wait_until
from ..harness.processes import wait_for_statuses
from ..harness.threads import WorkerThread

store = Store("default")

StartWorker = Callable[..., WorkerThread]
HOUR = 3600

pytestmark = pytest.mark.django_db(transaction=True)


def heartbeat_of(worker: WorkerThread) -> Any:
    return Worker.objects.values_list("heartbeat_at", flat=True).get(pk=worker.id)


def test_a_worker_inserts_its_row_before_it_claims(worker_thread: StartWorker, gates: Any, settings: Any) -> None:
    settings.SKIPQUEUE = {"DEPLOYMENT": "4f2a"}
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, queue_names=("default",))
    wait_until(lambda: gates["g"].inside)
    own_row = Worker.objects.get()
    assert (own_row.pk, own_row.name, own_row.queues, own_row.concurrency) == (worker.id, "w", ["default"], 4)
    assert own_row.deployment == "4f2a"
    assert are_in_order(own_row.started_at, Job.objects.get().locked_at)


def test_a_worker_without_a_supervisor_writes_heartbeats_and_logs_it_once(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    worker = worker_thread(poll_interval=HOUR, worker_timeout=1.0)
    for _ in range(6):
        last_heartbeat = wait_until(lambda: Worker.objects.exists() and heartbeat_of(worker))
        wait_until(lambda last_heartbeat=last_heartbeat: heartbeat_of(worker) > last_heartbeat)  # type: ignore[misc]
    assert caplog.text.count("supervisor silent") == 1
    wait_until(lambda: store.heartbeat_worker(worker.id) and "supervisor back" in caplog.text)


@pytest.mark.parametrize("make_request", [Worker.restart, Worker.stop], ids=["restart", "stop"])
def test_a_worker_without_a_supervisor_obeys_a_request_to_restart_or_stop(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture, make_request: Callable[[Worker], bool]
) -> None:
    worker = worker_thread(poll_interval=HOUR, worker_timeout=1.0)
    wait_until(Worker.objects.exists)
    assert make_request(Worker.objects.get())
    wait_until(lambda: not Worker.objects.filter(pk=worker.id).exists(), "the worker has ended")


def test_a_worker_ignores_a_request_while_its_supervisor_is_alive() -> None:
    requests: list[str] = []
    options = WorkerOptions(name="w", database="default", worker_timeout=60.0)
    own_row = OwnRow(store, options, id="w/1:0", name="w/1", requested=requests.append)
    own_row.run(time.monotonic())
    Worker.objects.get().stop()
    own_row.run(time.monotonic())
    assert requests == []


class TestHeartbeatsOfTheSupervisor:
    """Heartbeats that the supervisor writes for a worker count as written by the worker."""

    @pytest.fixture
    def shared(self) -> SharedCounts:
        return SharedCounts()

    @pytest.fixture
    def own_row(self, shared: SharedCounts) -> OwnRow:
        options = WorkerOptions(name="w", database="default", worker_timeout=60.0)
        return OwnRow(store, options, id="w/1:0", name="w/1", shared=shared)

    def test_a_worker_inserts_its_row_although_the_supervisor_writes_heartbeats(
        self, own_row: OwnRow, shared: SharedCounts
    ) -> None:
        shared.heartbeat_at = 1000.0
        assert not own_row.is_alive(1000.0)  # because the row is not inserted yet
        assert own_row.due_at == 0.0
        own_row.run(1000.0)
        assert Worker.objects.filter(pk="w/1:0").exists()

    def test_while_the_supervisor_writes_heartbeats_the_worker_writes_none(
        self, own_row: OwnRow, shared: SharedCounts
    ) -> None:
        own_row.run(1000.0)
        assert own_row.is_alive(1030.0)  # for half of the worker timeout
        assert not own_row.is_alive(1030.1)
        assert own_row.due_at == 1015.0  # a quarter of the worker timeout later
        shared.heartbeat_at = 1010.0
        assert own_row.due_at == 1030.0, "after a third of the worker timeout"
        assert own_row.is_alive(1040.0)  # half of the worker timeout after the heartbeat of the supervisor
        assert not own_row.is_alive(1040.1)

    def test_a_worker_waits_longer_than_the_pause_between_heartbeats_of_the_supervisor(
        self, own_row: OwnRow, shared: SharedCounts
    ) -> None:
        own_row.run(1000.0)
        shared.heartbeat_at = 1010.0
        options = WorkerOptions(name="w", database="default", worker_timeout=60.0)
        assert own_row.due_at - shared.heartbeat_at > options.seconds_between_heartbeats

    def test_a_new_heartbeat_of_the_supervisor_prevents_the_warning_that_it_is_silent(
        self, own_row: OwnRow, shared: SharedCounts, caplog: pytest.LogCaptureFixture
    ) -> None:
        own_row.run(time.monotonic() - 60)
        own_row.supervisor_seen_at -= 60
        shared.heartbeat_at = time.monotonic()
        own_row.run(time.monotonic())
        assert "supervisor silent" not in caplog.text


def test_a_worker_inserts_its_row_again_if_it_was_deleted(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_thread(poll_interval=HOUR, worker_timeout=1.0)
    wait_until(Worker.objects.exists)
    store.delete_workers([worker.id])
    wait_until(Worker.objects.exists)
    wait_until(lambda: "worker row gone" in caplog.text)


def test_a_heartbeat_is_written_again_after_its_connection_broke(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_connection, "FIRST_REOPEN_DELAY", 0.05)
    heartbeat_worker = Store.heartbeat_worker
    worker_ids: list[str] = []

    def heartbeat_or_error(self: Store, worker_id: str) -> Any:
        worker_ids.append(worker_id)
        if len(worker_ids) == 1:
            raise OperationalError("the server closed the connection unexpectedly")
        return heartbeat_worker(self, worker_id)

    monkeypatch.setattr(Store, "heartbeat_worker", heartbeat_or_error)
    worker_thread(poll_interval=HOUR, worker_timeout=float(HOUR))
    wait_until(Worker.objects.exists)
    assert len(worker_ids) == 2


def test_a_worker_that_cannot_write_heartbeats_settles_jobs_but_claims_none(
    worker_thread: StartWorker, gates: Any, session: Callable[[], Session], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    worker_jobs.pass_gate.defer("g")
    worker_thread(poll_interval=0.05, worker_timeout=1.0)
    wait_until(lambda: gates["g"].inside)
    locking_session = session()
    locking_session.begin()
    locking_session(lock_workers)
    wait_until(lambda: "claiming paused" in caplog.text)
    jobs.noop.defer()
    gates["g"].open()
    wait_for_statuses(completed=1, queued=1)
    locking_session.rollback()
    wait_for_statuses(completed=2)
    assert caplog.text.count("heartbeat refused") == 1
    wait_until(lambda: "claiming resumed" in caplog.text)


def lock_workers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE skipqueue_worker IN ACCESS EXCLUSIVE MODE")
