"""A paused queue: no worker claims its jobs, and no supervisor calls workers for them."""

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.models import Job, Queue

from ..app import jobs
from ..app.models import Ledger
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, statuses, wait_for_statuses, workers
from .test_watch_queues import count_active_workers as count_workers_active_since

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)

noop_in_paused_queue = jobs.noop.using(queue_name="paused")
noop_in_other_queue = jobs.noop.using(queue_name="other")


def count_completed(queue_name: str) -> int:
    return Job.objects.completed().filter(queue_name=queue_name).count()


def leases_of_queued(queue_name: str) -> dict[int, int]:
    return dict(Job.objects.queued().filter(queue_name=queue_name).values_list("pk", "lease"))


def test_workers_under_load_stop_claiming_within_a_second_of_a_pause(runworker: RunWorker) -> None:
    for _ in range(10):
        noop_in_paused_queue.defer_many([() for _ in range(3_000)])
        noop_in_other_queue.defer_many([() for _ in range(500)])
    runworker("--processes", "2", "--queues", "paused,other")
    wait_until(lambda: count_completed("paused") > 100)
    Queue.pause("paused")
    # Jobs that were claimed before have a second to end, while the workers go on with the second queue.
    wait_until(Queue.objects.filter(paused_at__lt=Now() - timedelta(seconds=1)).exists, "a second has passed")
    waiting_leases = leases_of_queued("paused")
    assert waiting_leases, "the test was too slow: nothing was left to pause"
    wait_until(lambda: count_completed("other") == 5_000, deadline=60)
    wait_until(lambda: "running" not in statuses())
    remaining_leases = leases_of_queued("paused")
    assert waiting_leases.items() <= remaining_leases.items(), "each claim gives a job another lease"
    start_times = Job.objects.filter(queue_name="paused").order_by("-started_at").values_list("started_at", flat=True)
    last_start = start_times.exclude(started_at=None).first()
    paused_at = Queue.objects.get().paused_at
    assert last_start is not None
    assert paused_at is not None
    assert last_start - paused_at < timedelta(seconds=10)  # one second, and some more on a busy machine
    noop_in_other_queue.defer()
    wait_until(lambda: count_completed("other") == 5_001)
    assert leases_of_queued("paused") == remaining_leases


@pytest.mark.parametrize("options", [(), ("--queues", "paused")], ids=["all queues", "this queue"])
def test_resuming_a_queue_wakes_idle_workers_at_once(runworker: RunWorker, options: tuple[str, ...]) -> None:
    runworker("--processes", "2", "--poll-interval", HOUR, *options)
    workers(2)
    Queue.pause("paused")
    noop_in_paused_queue.defer_many([() for _ in range(20)])
    if not options:
        jobs.noop.defer()
    Queue.resume("paused")
    wait_until(lambda: count_completed("paused") == 20)


def test_resuming_a_queue_wakes_a_worker_whose_supervisor_is_stopped(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR)
    workers(1)
    Queue.pause("paused")
    process.send(signal.SIGSTOP)
    noop_in_paused_queue.defer()
    Queue.resume("paused")
    wait_for_statuses(completed=1)
    process.send(signal.SIGCONT)


@pytest.mark.parametrize("listens", [(), ("--no-listen",)], ids=["listens", "polls"])
def test_jobs_of_a_queue_whose_pause_has_ended_by_itself_are_found_by_polling(
    runworker: RunWorker, listens: tuple[str, ...]
) -> None:
    Queue.pause("paused", for_=timedelta(seconds=1))
    noop_in_paused_queue.defer()
    runworker("--poll-interval", "0.3", *listens)
    wait_for_statuses(completed=1)
    job = Job.objects.get()
    paused_until = Queue.objects.get().paused_until
    assert job.started_at is not None
    assert paused_until is not None
    assert job.started_at > paused_until


@pytest.mark.parametrize("queues", [(), ("--queues", "paused,other")], ids=["all queues", "these queues"])
def test_a_drain_does_not_wait_for_a_paused_queue(runworker: RunWorker, queues: tuple[str, ...]) -> None:
    Queue.pause("paused")
    noop_in_paused_queue.defer_many([(), ()])
    noop_in_other_queue.defer()
    assert runworker("--drain", *queues).wait() == 0
    assert statuses() == {"completed": 1, "queued": 2}


def test_no_worker_is_woken_for_jobs_of_a_paused_queue(runworker: RunWorker) -> None:
    """Only the one worker that runs the job of the other queue is active."""
    runworker("--processes", "2", "--poll-interval", HOUR)
    workers(2)
    wait_until(lambda: count_workers_active_since("'-infinity'") == 2)
    Queue.pause("paused")
    wait_until(lambda: count_active_workers() == 1)


def count_active_workers() -> int:
    """Enqueue 20 jobs into the paused queue and one into the other queue. Returns how many workers became active."""
    wait_until(lambda: count_workers_active_since("now() - interval '1 second'") == 0, "all are idle")
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()::text")
        started_at = cursor.fetchone()[0]
    for _ in range(20):
        noop_in_paused_queue.defer()
    completed_before = count_completed("other")
    noop_in_other_queue.defer()
    wait_until(lambda: count_completed("other") == completed_before + 1)
    return count_workers_active_since(f"'{started_at}'")


def test_the_retry_of_a_failed_job_waits_in_its_paused_queue(runworker: RunWorker) -> None:
    runworker("--poll-interval", "0.2")
    jobs.record_and_hold.using(queue_name="paused").defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    Queue.pause("paused")
    jobs.fail.using(queue_name="paused").defer()
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=1, queued=1)


def test_a_job_of_a_killed_worker_waits_in_its_paused_queue(runworker: RunWorker) -> None:
    runworker("--poll-interval", "0.2")
    (worker,) = workers(1)
    jobs.record_and_hold.using(queue_name="paused").defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    Queue.pause("paused")
    os.kill(worker.pid, signal.SIGKILL)
    wait_for_statuses(queued=1)
    noop_in_other_queue.defer()
    wait_until(lambda: count_completed("other") == 1)
    assert Job.objects.get(queue_name="paused").status == "queued", "recovered, and not claimed by the next worker"
    Ledger.objects.create(entry="go")
    Queue.resume("paused")
    wait_for_statuses(completed=2)
