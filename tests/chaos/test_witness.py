"""The witness (triggers on the real tables) recognises each kind of change of a job by the columns that change."""

import uuid
from typing import Any

import pytest
from django.db import connection

from django_skipqueue import Batch
from django_skipqueue.jobs.task_call import TaskCall
from django_skipqueue.models import Job, JobBatch
from django_skipqueue.parts.batches.finish import finish_open_batches
from django_skipqueue.parts.limits.admit import admit_keys
from django_skipqueue.parts.rates.admit import admit_rate_keys
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import Outcome, Settlement
from django_skipqueue.values.records import EncodedCall, JobSpec

from ..app.rows import make_job, make_worker
from .evidence import CANCELLED, Evidence, gather
from .policies import batches_call_back_once, chains_are_in_order, rates_hold
from .witness import TABLES

store = Store("default")

pytestmark = pytest.mark.django_db

WORKER = str(uuid.uuid4())


@pytest.fixture(autouse=True)
def _witness_tables() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLES)


def gather_evidence() -> Evidence:
    return gather(connection.connection)


def verbs_of(job: Job) -> list[str]:
    """The kinds of changes of a job that the witness has recorded."""
    return [change.verb for change in gather_evidence().by_job[job.pk]]


def claim() -> Job:
    (job,) = Job.objects.claim(queue_names=["default"], worker_id=WORKER)
    return job


def settle(job: Job, outcome: Outcome) -> None:
    assert store.settle([Settlement(job.pk, job.lease, outcome)])


def test_the_witness_records_the_lease_under_which_a_job_completed() -> None:
    make_job("queued")
    job = claim()
    settle(job, Outcome("completed", result=f'{{"lease": {job.lease}}}'))
    assert verbs_of(job) == ["enqueue", "claim", "settle"]
    assert gather_evidence().changes[-1].ran_under == gather_evidence().changes[-1].lease_before == job.lease


def test_the_witness_reads_the_lease_from_the_error_of_a_failed_job() -> None:
    make_job("queued")
    job = claim()
    job.fail(ValueError(f"ran under lease {job.lease}"))
    assert verbs_of(job) == ["enqueue", "claim", "settle"]
    assert gather_evidence().changes[-1].ran_under == job.lease


def test_the_witness_records_a_snooze_as_a_settle() -> None:
    make_job("queued")
    job = claim()
    settle(job, Outcome("scheduled", delay=10, refund=1))
    assert verbs_of(job) == ["enqueue", "claim", "settle"]


def test_the_witness_records_release_recover_and_cancel() -> None:
    job = make_job("queued")
    claim().release()
    claim()
    store.recover(worker_ids=[WORKER])
    claim()
    store.cancel([job.pk], reason=CANCELLED)
    store.retry([job.pk])
    claim()
    store.cancel([job.pk], reason=CANCELLED)
    store.retry([job.pk])
    store.discard([job.pk])
    verbs = ["claim", "release", "claim", "recover", "claim", "cancel", "retry", "claim", "cancel", "retry", "discard"]
    assert verbs_of(job) == ["enqueue", *verbs]


def test_the_witness_records_other_changes_as_illegal() -> None:
    make_job("queued")
    job = claim()
    Job.objects.filter(pk=job.pk).update(status="running", lease=7)
    Job.objects.filter(pk=job.pk).delete()
    assert verbs_of(job) == ["enqueue", "claim", "illegal", "illegal"]


def test_the_witness_records_the_deletion_of_a_discarded_job_as_a_prune() -> None:
    job = make_job("queued")
    store.discard([job.pk])
    Job.objects.filter(pk=job.pk).delete()
    assert verbs_of(job) == ["enqueue", "discard", "prune"]
    assert gather_evidence().statuses == {job.pk: "discarded"}


def test_the_evidence_has_rows_by_schema() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_row (job_id) VALUES (1)")
        cursor.execute("INSERT INTO chaos_tenant.chaos_row (job_id) VALUES (2)")
    assert gather_evidence().rows == {"public": {1}, "chaos_tenant": {2}}


def test_the_witness_does_not_record_heartbeats() -> None:
    make_job("queued")
    job = claim()
    job.heartbeat()
    assert verbs_of(job) == ["enqueue", "claim"]


def test_the_witness_records_worker_processes() -> None:
    worker = make_worker()
    assert gather_evidence().processes == {str(worker.pk): worker.pid}
    assert gather_evidence().names == {str(worker.pk): worker.name}


def test_the_witness_records_the_key_of_a_limit() -> None:
    limit_columns: dict[str, Any] = {"limit_key": "k", "limit_kind": "concurrency", "capacity": 1}
    job = make_job("blocked", **limit_columns)
    admit_keys(store, ["k"])
    claim()
    store.cancel([job.pk], reason=CANCELLED)
    store.retry([job.pk])
    store.discard([job.pk])
    assert verbs_of(job) == ["enqueue", "admit", "claim", "cancel", "retry", "discard"]
    assert {(change.limit_key, change.limit_kind, change.capacity) for change in gather_evidence().changes} == {
        ("k", "concurrency", 1)
    }


def test_the_witness_records_the_rate_and_the_time_of_an_admission() -> None:
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    assert admit_rate_keys(store, ["k"])[0] == {"default": 1}
    change = gather_evidence().changes[-1]
    assert (change.verb, change.rate_key, change.rate_interval, change.rate_burst) == ("admit", "k", 60.0, 1)
    assert abs(change.statement_began - change.at) < 10
    assert not list(rates_hold(gather_evidence()))
    Job.objects.update(status="blocked", gate="rate")
    Job.objects.update(status="queued", gate=None)
    assert "had no token" in next(rates_hold(gather_evidence()))


def test_the_witness_records_batches_and_their_callbacks() -> None:
    with Batch(on_finish=make_callback("on_finish")) as outer, Batch(on_success=make_callback("on_success")) as inner:
        job = make_job("queued", batch_id=inner.id)
    assert [(change.batch, change.parent, change.what) for change in gather_evidence().batches] == [
        (outer.id, None, "open"),
        (inner.id, outer.id, "open"),
    ]
    assert gather_evidence().batches[1].calls == {"on_success"}
    settle(claim(), Outcome("completed"))
    finish_open_batches(store)
    settle(claim(), Outcome("completed"))
    finish_open_batches(store)
    assert list(batches_call_back_once(gather_evidence())) == [
        f"on_finish of batch {outer.id}, job {job.pk + 2}, has completed 0 times"
    ]
    settle(claim(), Outcome("completed"))
    assert not list(batches_call_back_once(gather_evidence()))
    assert [change.calls_back for change in gather_evidence().changes if change.verb == "enqueue"] == [
        None,
        "on_success",
        "on_finish",
    ]
    assert not gather_evidence().statuses.keys() - {change.job for change in gather_evidence().changes}
    JobBatch.objects.filter(pk=inner.id).delete()
    assert [change.what for change in gather_evidence().batches] == ["open", "open", "finish", "finish", "delete"]


def make_callback(name: str) -> TaskCall:
    return TaskCall(JobSpec(task="tests.chaos.jobs.called_back"), EncodedCall(f'["{name}"]', "{}"))


def test_a_job_that_begins_before_its_predecessor_has_completed_is_found() -> None:
    predecessor, successor = make_job("queued"), make_job("queued")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_need VALUES (%s, %s, 'run')", [successor.pk, predecessor.pk])
    first_claimed_job = claim()
    assert not list(chains_are_in_order(gather_evidence()))
    second_claimed_job = claim()
    assert list(chains_are_in_order(gather_evidence())) == [
        f"job {successor.pk} began while job {predecessor.pk}, which it needs, was running"
    ]
    assert [first_claimed_job.pk, second_claimed_job.pk] == [predecessor.pk, successor.pk]
