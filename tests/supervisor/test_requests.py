"""`Worker.restart()` and `Worker.stop()`: the supervisor replaces the worker, or stops, after its running jobs."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from django_skipqueue.models import Job, Worker, WorkerRequest

from ..app import jobs
from ..app.models import Ledger
from ..app.rows import make_worker
from ..app.sessions import Session
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
HOUR = "3600"
TIMEOUT = timedelta(seconds=2)
FREQUENT_HEARTBEATS = {"HEARTBEAT_INTERVAL": 0.25}

pytestmark = pytest.mark.django_db(transaction=True)


def start_held_job(entry: str) -> None:
    """Start a job that ends once there is an entry `go`."""
    jobs.record_and_hold.defer(entry)
    wait_until(lambda: Ledger.objects.filter(entry=entry).exists())


def worker_ids() -> list[str]:
    return [worker.pk for worker in Worker.objects.order_by("name")]


def test_a_restart_replaces_this_worker_at_once_and_no_other(runworker: RunWorker) -> None:
    rare_heartbeats = {"HEARTBEAT_INTERVAL": 600}
    process = runworker("--processes", "2", "--name", "m", "--worker-timeout", HOUR, skipqueue=rare_heartbeats)
    first_worker, second_worker = workers(2)
    wait_until(lambda: not Worker.objects.filter(memory_mb=None).exists(), "the supervisor has written its heartbeats")
    assert first_worker.restart()
    wait_until(lambda: len(worker_ids()) == 2 and first_worker.pk not in worker_ids())
    assert second_worker.pk in worker_ids()
    process.wait_for('worker recycled worker=m/1 reason="an operator has requested it"')
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert not WorkerRequest.objects.exists(), "a request is deleted with the row of its worker"


def test_running_jobs_end_before_a_restart(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, "--shutdown-timeout", "0.1")
    (worker,) = workers(1)
    start_held_job("first")
    worker.restart()
    worker.restart()
    process.wait_for("worker recycled")
    jobs.noop.defer()
    wait_for_statuses(running=1, queued=1)
    worker.restart()
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=2)
    wait_until(lambda: worker_ids() and worker.pk not in worker_ids())
    assert process.log.count("worker recycled") == 1


def test_a_supervisor_without_notifications_finds_the_request_with_its_heartbeat(runworker: RunWorker) -> None:
    runworker("--no-listen", "--worker-timeout", "4")
    (worker,) = workers(1)
    worker.restart()
    wait_until(lambda: worker_ids() and worker.pk not in worker_ids())


@pytest.mark.parametrize("request_name", ["restart", "stop"])
def test_an_uncommitted_request_does_not_delay_heartbeats(
    runworker: RunWorker, session: Callable[[], Session], request_name: str
) -> None:
    """Otherwise another supervisor would recover the jobs of a live worker, and they would run twice."""
    runworker("--worker-timeout", "2", "--queues", "other", "--name", "B", skipqueue=FREQUENT_HEARTBEATS).wait_for(
        "worker started"
    )
    process = runworker("--worker-timeout", "2", "--name", "A", skipqueue=FREQUENT_HEARTBEATS)
    workers(2)
    start_held_job("first")
    worker = Worker.objects.get(name="A/1")
    operator = session()
    operator.begin()
    assert operator(getattr(worker, request_name))
    assert operator(getattr(worker, request_name)), "a second time, in the same transaction"
    wait_until(lambda: Worker.objects.filter(pk=worker.pk, heartbeat_at__gt=worker.heartbeat_at + 3 * TIMEOUT).exists())
    assert Job.objects.filter(status="running", attempts=1, lease=1, errors=[]).exists(), Job.objects.values().get()
    operator.commit()
    process.wait_for({"restart": "worker recycled", "stop": "supervisor stopping"}[request_name])
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=1)


def test_a_stop_of_one_worker_ends_the_whole_runworker_after_its_running_jobs(runworker: RunWorker) -> None:
    process = runworker("--processes", "2", "--name", "m", "--worker-timeout", HOUR)
    first_worker, second_worker = workers(2)
    start_held_job("first")
    assert second_worker.stop()
    process.wait_for("supervisor stopping worker=m/2")
    assert second_worker.stop() or not Worker.objects.filter(pk=second_worker.pk).exists(), (
        "a second request does not end the running job"
    )
    first_worker.stop()  # it may have stopped, so its row may be gone
    Ledger.objects.create(entry="go")
    assert process.wait() == 0
    wait_for_statuses(completed=1)
    assert not Worker.objects.exists()
    assert process.log.count("supervisor stopping") == 1


def test_a_request_does_not_concern_a_worker_with_the_same_name_but_another_id(runworker: RunWorker) -> None:
    runworker("--name", "m", "--worker-timeout", HOUR)
    (first_worker,) = workers(1)
    first_worker.restart()
    wait_until(lambda: worker_ids() and first_worker.pk not in worker_ids())
    assert not first_worker.stop(), "the restarted worker has no row any more"
    worker_with_same_name = make_worker(name="m/1")
    assert worker_with_same_name.stop()
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert len(worker_ids()) == 2


def test_heartbeats_write_the_memory_of_a_worker_and_how_many_jobs_it_has_run(runworker: RunWorker) -> None:
    runworker("--worker-timeout", "2")
    jobs.noop.defer_many([() for _ in range(7)])
    wait_for_statuses(completed=7)
    worker_row = wait_until(lambda: Worker.objects.filter(jobs_done=7).first())
    assert worker_row
    assert worker_row.memory_mb is not None
    assert 10 < worker_row.memory_mb < 1_000
