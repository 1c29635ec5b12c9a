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
from .test_watch_queues import active_workers

Run = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)

paused = jobs.noop.using(queue_name="paused")
other = jobs.noop.using(queue_name="other")


def done(queue_name: str) -> int:
    return Job.objects.completed().filter(queue_name=queue_name).count()


def leases(queue_name: str) -> dict[int, int]:
    return dict(Job.objects.queued().filter(queue_name=queue_name).values_list("pk", "lease"))


def test_nothing_is_claimed_within_a_second_of_a_pause_under_load(runworker: Run) -> None:
    for _ in range(10):
        paused.defer_many([() for _ in range(3_000)])
        other.defer_many([() for _ in range(500)])
    runworker("--processes", "2", "--queues", "paused,other")
    wait_until(lambda: done("paused") > 100)
    Queue.pause("paused")
    # Jobs that were claimed before have a second to end, while the workers go on with the second queue.
    wait_until(Queue.objects.filter(paused_at__lt=Now() - timedelta(seconds=1)).exists, "a second has passed")
    waiting = leases("paused")
    assert waiting, "the test was too slow: nothing was left to pause"
    wait_until(lambda: done("other") == 5_000, deadline=60)
    wait_until(lambda: "running" not in statuses())
    left = leases("paused")
    assert waiting.items() <= left.items(), "each claim gives a job another lease"
    last = Job.objects.filter(queue_name="paused").order_by("-started_at").values_list("started_at", flat=True)
    newest = last.exclude(started_at=None).first()
    paused_at = Queue.objects.get().paused_at
    assert newest is not None
    assert paused_at is not None
    assert newest - paused_at < timedelta(seconds=10)  # a second, and what a loaded machine adds
    other.defer()
    wait_until(lambda: done("other") == 5_001)
    assert leases("paused") == left


@pytest.mark.parametrize("options", [(), ("--queues", "paused")], ids=["all queues", "this queue"])
def test_a_resume_wakes_the_workers_at_once(runworker: Run, options: tuple[str, ...]) -> None:
    runworker("--processes", "2", "--poll-interval", HOUR, *options)
    workers(2)
    Queue.pause("paused")
    paused.defer_many([() for _ in range(20)])
    jobs.noop.defer() if not options else None
    Queue.resume("paused")
    wait_until(lambda: done("paused") == 20)


def test_a_resume_wakes_workers_that_watch_themselves(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR)
    workers(1)
    Queue.pause("paused")
    process.send(signal.SIGSTOP)
    paused.defer()
    Queue.resume("paused")
    wait_for_statuses(completed=1)
    process.send(signal.SIGCONT)


@pytest.mark.parametrize("listens", [(), ("--no-listen",)], ids=["listens", "polls"])
def test_a_pause_that_ends_by_itself_is_found_by_polling(runworker: Run, listens: tuple[str, ...]) -> None:
    Queue.pause("paused", for_=timedelta(seconds=1))
    paused.defer()
    runworker("--poll-interval", "0.3", *listens)
    wait_for_statuses(completed=1)
    job = Job.objects.get()
    until = Queue.objects.get().paused_until
    assert job.started_at is not None
    assert until is not None
    assert job.started_at > until


@pytest.mark.parametrize("queues", [(), ("--queues", "paused,other")], ids=["all queues", "these queues"])
def test_a_drain_does_not_wait_for_a_paused_queue(runworker: Run, queues: tuple[str, ...]) -> None:
    Queue.pause("paused")
    paused.defer_many([(), ()])
    other.defer()
    assert runworker("--drain", *queues).wait() == 0
    assert statuses() == {"completed": 1, "queued": 2}


def test_nobody_is_called_for_jobs_of_a_paused_queue(runworker: Run) -> None:
    """One worker runs the job of the second queue. On a busy machine it may not answer soon."""
    runworker("--processes", "2", "--poll-interval", HOUR)
    workers(2)
    wait_until(lambda: active_workers("'-infinity'") == 2)
    Queue.pause("paused")
    wait_until(lambda: active_beside_paused_jobs() == 1)


def active_beside_paused_jobs() -> int:
    """How many workers are active while jobs come into the paused queue, and one job into the second queue."""
    wait_until(lambda: active_workers("now() - interval '1 second'") == 0, "all are idle")
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()::text")
        before = cursor.fetchone()[0]
    for _ in range(20):
        paused.defer()
    finished = done("other")
    other.defer()
    wait_until(lambda: done("other") == finished + 1)
    return active_workers(f"'{before}'")


def test_a_retry_waits_in_the_paused_queue(runworker: Run) -> None:
    runworker("--poll-interval", "0.2")
    jobs.record_and_hold.using(queue_name="paused").defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    Queue.pause("paused")
    jobs.fail.using(queue_name="paused").defer()
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=1, queued=1)


def test_a_worker_that_is_killed_leaves_its_jobs_to_the_paused_queue(runworker: Run) -> None:
    runworker("--poll-interval", "0.2")
    (worker,) = workers(1)
    jobs.record_and_hold.using(queue_name="paused").defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    Queue.pause("paused")
    os.kill(worker.pid, signal.SIGKILL)
    wait_for_statuses(queued=1)
    other.defer()
    wait_until(lambda: done("other") == 1)
    assert Job.objects.get(queue_name="paused").status == "queued", "recovered, and not claimed by the next worker"
    Ledger.objects.create(entry="go")
    Queue.resume("paused")
    wait_for_statuses(completed=2)
