"""A worker claims jobs of a limit ahead of their permits: which jobs it may claim, and that the limit holds."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.keyed.sql import key_of
from django_skipqueue.parts.limits.admit import admit_keys
from django_skipqueue.parts.limits.claim import AheadWish
from django_skipqueue.parts.limits.exchange import Lines
from django_skipqueue.parts.limits.exchange import claimed_ahead as jobs_claimed_ahead
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import ClaimedJob, LeaseRef

from ...app.limit_rows import exchange, make_keyed
from ...app.limits.jobs import lock_one_of_two_files
from ...app.models import Ledger
from ...app.rows import state
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses, workers
from ...harness.threads import WorkerThread

RunWorker = Callable[..., ManagePy]
store = Store("default")
pytestmark = pytest.mark.django_db(transaction=True)


def make_running(*, by: str = "w", **fields: Any) -> LeaseRef:
    job = make_keyed("k", "running", locked_by=by, **fields)
    return job.pk, job.lease


def claim_ahead(
    *, settled: list[LeaseRef], running: list[LeaseRef], permits: int, most: int = 10, outcome: Outcome = COMPLETED
) -> list[int]:
    """Settle the jobs `settled`, and claim jobs ahead. The worker also has the leases of the jobs `running`."""
    wish = AheadWish("k", "tests.app.jobs.noop", "default", permits, most, [*settled, *running])
    return [job.id for job in settle_and_claim_ahead(wish, [Settlement(*ref, outcome) for ref in settled])]


def settle_and_claim_ahead(wish: AheadWish, settlements: Iterable[Settlement] = ()) -> list[ClaimedJob]:
    """Settle these jobs, and claim ahead. Returns the claimed jobs."""
    answer, _ = exchange(store, settlements, queue_names=[], limit=0, ahead=[wish])
    return jobs_claimed_ahead(answer)


def test_a_worker_claims_the_next_jobs_of_the_key_beyond_its_permits() -> None:
    ending, keeps_running = (make_running(capacity=2) for _ in range(2))
    low, first, second = (make_keyed("k", capacity=2, priority=priority).pk for priority in (-1, 0, 0))
    assert claim_ahead(settled=[ending], running=[keeps_running], permits=2, most=2) == [first, second]
    assert statuses() == {"completed": 1, "running": 3, "blocked": 1}
    assert state(Job.objects.get(pk=first))["gate"] == "ahead"
    assert admit_keys(store, ["k"]).counts == {}, "the leases of the worker count"
    assert Job.objects.get(pk=low).status == "blocked"


@pytest.mark.parametrize("outcome", [COMPLETED, Outcome("scheduled", delay=60.0)], ids=["completed", "retried"])
def test_the_job_that_a_worker_settles_counts_as_one_of_its_leases(outcome: Outcome) -> None:
    waiting = make_keyed("k").pk
    assert claim_ahead(settled=[make_running()], running=[], permits=1, outcome=outcome) == [waiting]


def test_after_a_refused_outcome_only_the_remaining_leases_count() -> None:
    """The refused outcomes were settled in an earlier transaction, so other jobs may have their permits."""
    waiting = make_keyed("k", capacity=2).pk
    refused = Outcome("completed", result="{")  # PostgreSQL refuses the invalid JSON
    assert (
        claim_ahead(settled=[make_running(capacity=2)], running=[make_running(capacity=2)], permits=2, outcome=refused)
        == []
    )
    assert statuses() == {"failed": 1, "running": 1, "blocked": 1}
    assert claim_ahead(
        settled=[make_running(capacity=2)], running=[make_running(capacity=2)], permits=1, outcome=refused
    ) == [waiting]


def test_a_worker_claims_nothing_ahead_if_it_had_fewer_leases_than_it_counts_permits() -> None:
    """Other jobs may have the permits, because a lease was lost, or because the task itself has settled its job."""
    make_keyed("k", capacity=2)
    permit_holder = make_running(capacity=2)
    lost = make_keyed("k", "queued", capacity=2)
    completed = make_keyed("k", "completed", capacity=2)
    for other_job in (lost, completed):
        assert claim_ahead(settled=[], running=[permit_holder, (other_job.pk, other_job.lease)], permits=2) == []
        assert claim_ahead(settled=[], running=[permit_holder, (other_job.pk, other_job.lease - 1)], permits=2) == []
    id, lease = make_running(capacity=2)
    assert claim_ahead(settled=[], running=[permit_holder, (id, lease + 1)], permits=2) == []
    assert claim_ahead(settled=[], running=[permit_holder, (id, lease)], permits=2) != []


@pytest.mark.parametrize(
    "fields",
    [
        {"queue_name": "other"},
        {"task": "tests.app.jobs.add"},
        {"capacity": 2},
        {"rate_key": "r", "rate_interval": 1.0, "rate_burst": 1},
        {"deaths": ["a", "b"]},
        {"kind": "fair"},
    ],
    ids=["queue", "task", "capacity", "rate", "suspect", "kind"],
)
def test_a_claim_ahead_stops_at_a_job_that_it_may_not_claim(fields: dict[str, Any]) -> None:
    first_of_key = make_keyed("k").pk
    make_keyed("k", **fields)
    make_keyed("k")
    assert claim_ahead(settled=[make_running()], running=[], permits=1) == [first_of_key]


def test_no_job_of_a_paused_queue_is_claimed_ahead() -> None:
    Queue.pause("default")
    make_keyed("k")
    assert claim_ahead(settled=[make_running()], running=[], permits=1) == []


def test_no_job_is_claimed_ahead_in_a_queue_whose_limit_was_changed(settings: Any) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"default": {"concurrency": 1}}}
    Queue.limit("default", 1)
    key = key_of("default")
    job = make_keyed(key, "running", locked_by="w")
    make_keyed(key)
    wish = AheadWish(key, "tests.app.jobs.noop", "default", 1, 10, [(job.pk, job.lease)])
    assert not settle_and_claim_ahead(wish)
    Queue.limit_by_settings("default")
    assert settle_and_claim_ahead(wish)


def make_claimed_ahead() -> ClaimedJob:
    """Make two jobs of a limit of one: the first has the permit, and the worker has claimed the second ahead of it."""
    make_keyed("k")
    permit_holder = make_running()
    wish = AheadWish("k", "tests.app.jobs.noop", "default", 1, 1, [permit_holder])
    (job,) = settle_and_claim_ahead(wish)
    return job


def settle(job: ClaimedJob) -> None:
    store.settle([Settlement(*job.ref, Outcome("scheduled", delay=60.0))])


def release(job: ClaimedJob) -> None:
    store.release([job.ref])


def release_orphans(job: ClaimedJob) -> None:
    store.release_orphans("w", known=[other_job.pk for other_job in Job.objects.exclude(pk=job.id)])


def recover(job: ClaimedJob) -> None:
    store.recover(worker_ids=["w"], reason="it died", job_ids=[job.id])


def cancel(job: ClaimedJob) -> None:
    Job.objects.filter(pk=job.id).cancel()
    Job.objects.filter(pk=job.id).retry()


@pytest.mark.parametrize("give_up", [settle, release, release_orphans, recover, cancel])
def test_a_job_claimed_ahead_and_given_up_waits_for_a_permit_again(give_up: Callable[[ClaimedJob], None]) -> None:
    job = make_claimed_ahead()
    give_up(job)
    job_given_up = Job.objects.get(pk=job.id)
    assert (job_given_up.status, job_given_up.gate) == (
        ("scheduled", None) if give_up is settle else ("blocked", "limit")
    )
    Job.objects.running().update(status="completed", finished_at=job_given_up.enqueued_at, gate=None)
    Job.objects.update(run_after=job_given_up.enqueued_at)
    store.admit()
    sweep_gates(store)
    assert Job.objects.get(pk=job.id).status == "queued"


def test_a_released_job_is_admitted_at_once_if_a_permit_is_free() -> None:
    id, lease = make_running()
    store.release([(id, lease)])
    assert Job.objects.get(pk=id).status == "queued"


def test_a_worker_claims_short_jobs_ahead_without_exceeding_the_limit(runworker: RunWorker) -> None:
    runworker("--concurrency", "4")
    workers(1)
    lock_one_of_two_files.defer_many([("a", number) for number in range(2_000)])
    wait_until(lambda: Job.objects.running().filter(gate="ahead").exists())
    wait_for_statuses(completed=2_000, deadline=60)
    assert not Ledger.objects.filter(entry="exceeded").exists()


def test_no_limit_is_exceeded_while_workers_with_jobs_ahead_are_killed(runworker: RunWorker) -> None:
    """Each run locks one of two files, which the system unlocks if the process dies. A third run would find none."""
    for _ in range(2):
        runworker("--processes", "2", "--concurrency", "4")
    wait_until(lambda: len(workers(4)) == 4)
    for first_number in range(0, 2_000, 400):
        lock_one_of_two_files.defer_many(
            [(f"k{number % 3}", number, 0.002) for number in range(first_number, first_number + 400)]
        )
        wait_until(partial(have_completed, first_number + 100))
        with suppress(ProcessLookupError, IndexError):
            os.kill(workers(1)[0].pid, signal.SIGKILL)
    wait_for_statuses(completed=2_000, deadline=90)
    assert not Ledger.objects.filter(entry="exceeded").exists()


def have_completed(number: int) -> bool:
    return Job.objects.completed().count() >= number


def test_a_worker_does_not_use_the_permit_of_a_suspect_for_other_jobs(
    worker_thread: Callable[..., WorkerThread],
) -> None:
    """Another process runs the suspect (a job of which two workers have died), which keeps its permit there."""
    suspect = make_keyed("k", "queued", deaths=["a", "b"])
    worker = worker_thread(concurrency=2)
    wait_until(lambda: Job.objects.get(pk=suspect.pk).status == "running")
    wait_until(lambda: worker.worker.in_flight.jobs)
    lines = worker.worker.pool.begin_order
    assert isinstance(lines, Lines)
    assert lines.get("k") is None
