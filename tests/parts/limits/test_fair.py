"""`fair_by`: the jobs of one tenant do not keep the jobs of another tenant waiting."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Max

from django_skipqueue import by, job, limit
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ...app.limit_rows import exchange
from ...app.limits.jobs import shared_fairly
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses, workers
from ...harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]
RunWorker = Callable[..., ManagePy]

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def claim_ids(limit: int = 100) -> list[int]:
    return [job.id for job in store.claim(queue_names=["default"], limit=limit, worker_id="w")]


def settle_and_claim(*ids: int, limit: int = 100, still_running: tuple[int, ...] = ()) -> list[int]:
    """Settle the jobs `ids`, admit jobs of their keys, and claim, as a worker does. Returns the ids of claimed jobs."""
    leases = dict(Job.objects.filter(pk__in=ids).values_list("pk", "lease"))
    settlements = [Settlement(id, leases[id], COMPLETED) for id in ids]
    limited = [*ids, *still_running]
    result, _ = exchange(store, settlements, queue_names=["default"], limit=limit, limited=limited)
    return [job.id for job in result.claimed()]


def test_a_tenant_begins_with_two_queued_jobs_and_their_number_doubles() -> None:
    shared_fairly.defer_many([("a",)] * 100)
    assert statuses() == {"queued": 2, "blocked": 98}
    assert len(first := claim_ids()) == 2
    assert len(second := settle_and_claim(*first)) == 4
    assert len(third := settle_and_claim(*second)) == 8
    assert len(settle_and_claim(*third)) == 16


def test_a_tenant_alone_gets_all_slots_because_as_many_jobs_are_queued_as_run() -> None:
    """For each job that runs, another job is queued. No job has to end first."""
    shared_fairly.defer_many([("a",)] * 100)
    running = claim_ids()
    for expected in (2, 4, 8, 16):
        admitted_ids = settle_and_claim(still_running=tuple(running))
        assert len(admitted_ids) == expected
        running = admitted_ids
    settle_and_claim(still_running=tuple(running), limit=1)
    assert Job.objects.queued().count() == 31, (
        "one queued job for each running job when the permits were counted, less the claimed job"
    )


def test_a_job_of_another_tenant_comes_before_jobs_that_are_admitted_after_it() -> None:
    """Although all jobs of the first tenant were enqueued first."""
    shared_fairly.defer_many([("a",)] * 50)
    first = claim_ids()
    job_of_b = shared_fairly.defer("b").pk
    assert settle_and_claim(*first, limit=1) == [job_of_b]


def test_within_a_tenant_the_job_of_highest_priority_and_then_the_oldest_is_admitted() -> None:
    shared_fairly.defer_many([("a",)] * 4)
    high = shared_fairly.using(priority=7).defer("a").pk
    ids = claim_ids()
    assert settle_and_claim(*ids)[0] == high


def test_the_next_jobs_of_a_tenant_are_queued_after_a_discard() -> None:
    shared_fairly.defer_many([("a",)] * 4)
    Job.objects.queued().discard()
    assert sweep_gates(store)
    assert statuses() == {"discarded": 2, "queued": 2}
    assert not sweep_gates(store), "as many jobs are queued as may be"


def test_a_sweep_queues_as_many_jobs_as_run() -> None:
    shared_fairly.defer_many([("a",)] * 100)
    for queued in (2, 2, 4, 8):
        assert Job.objects.queued().count() == queued
        claim_ids()
        sweep_gates(store)


def test_run_jobs_runs_all_jobs_of_a_fair_key() -> None:
    shared_fairly.defer_many([("a",)] * 9)
    assert [job.status for job in run_jobs()] == ["completed"] * 9


def test_a_fair_key_contains_the_values_of_all_its_arguments(registry: Registry) -> None:
    def send(tenant: str, region: str) -> None: ...

    send.__module__, send.__qualname__ = "tests.parts.limits.test_fair", "send"
    call = job(fair_by=("tenant", "region"))(send).encoded(("a",), {"region": "b"})
    assert call.columns["limit_key"] == 'fair:tests.parts.limits.test_fair.send tenant="a", region="b"'
    assert call.columns["limit_kind"] == "fair"


@pytest.mark.parametrize(
    "options",
    [
        {"fair_by": ()},
        {"fair_by": 3},
        {"fair_by": "customer"},
        {"fair_by": "tenant", "concurrency": limit(2)},
        {"fair_by": "tenant", "sequence": by("tenant")},
    ],
)
def test_options_of_fair_by_that_cannot_be_used_are_refused(options: Any, registry: Registry) -> None:
    def refused(tenant: str) -> None: ...

    refused.__module__, refused.__qualname__ = "tests.parts.limits.test_fair", "refused"
    with pytest.raises(InvalidOption, match="fair_by"):
        job(**options)(refused)  # type: ignore[no-untyped-call]


# With live workers


def test_a_tenant_alone_gets_all_slots_of_a_worker_without_any_sweep(worker_thread: StartWorker) -> None:
    worker = worker_thread(poll_interval=3600.0, concurrency=6)
    wait_until(lambda: worker.listens)
    shared_fairly.defer_many([("a", 3.0)] * 12)
    wait_until(lambda: Job.objects.running().count() >= 6)
    assert not Job.objects.completed().exists(), "the other jobs are let in before any job has ended"


def test_one_job_beside_thousands_of_another_tenant_soon_runs(runworker: RunWorker) -> None:
    """Only two queued jobs for each slot come before the job of the second tenant."""
    runworker("--processes", "2", "--concurrency", "2")
    wait_until(lambda: len(workers(2)) == 2)
    shared_fairly.defer_many([("a", 0.02)] * 3_000)
    wait_until(lambda: Job.objects.completed().count() > 20)
    job_of_b = shared_fairly.defer("b").pk
    wait_until(lambda: Job.objects.get(pk=job_of_b).status == "completed")
    last_of_a = Job.objects.completed().exclude(pk=job_of_b).aggregate(last=Max("id"))["last"]
    assert Job.objects.unfinished().count() > 1_500
    assert last_of_a < job_of_b


def test_a_drain_ends_when_the_jobs_of_all_tenants_have_run(worker_thread: StartWorker) -> None:
    shared_fairly.defer_many([(f"t{number % 50}",) for number in range(1000)])
    drains = [worker_thread(drain=True, concurrency=4) for _ in range(2)]
    for drain in drains:
        drain.wait()
    wait_for_statuses(completed=1000)
