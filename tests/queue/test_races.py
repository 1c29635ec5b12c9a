"""Two or more transactions change the same job at the same time. The tests show which transaction succeeds."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import ClaimedJob

from ..app import jobs
from ..app.rows import lease_of, make_job, make_worker, state
from ..app.sessions import Session
from ..app.waiting import within

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

MakeSession = Callable[[], Session]
ROOT = Path(__file__).resolve().parents[2]


def test_eight_processes_work_through_twenty_thousand_jobs_each_exactly_once() -> None:
    ids = jobs.noop.using(queue_name="race").defer_many([()] * 20_000)
    command = [sys.executable, "-m", "tests.app.drain", connection.settings_dict["NAME"], "race"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings")}
    environment["PYTHONPATH"] = os.pathsep.join([path for path in sys.path if path])
    command += map(str, (1, 7, 20, 50, 50, 100, 100, 250))
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    results = json.loads(process.stdout)
    counts = Counter(id for result in results for id in result["claimed"])
    assert not [id for id, count in counts.items() if count > 1], "no job was claimed twice"
    assert set(counts) == set(ids), "no job was left"
    assert not any(result["lost"] for result in results)
    assert sum(bool(result["claimed"]) for result in results) > 1, "several processes claimed jobs"
    assert list(Job.objects.values_list("status", "attempts", "lease").distinct()) == [("completed", 1, 2)]


def claim(limit: int = 10, worker_id: str = "w") -> list[Job]:
    return Job.objects.claim(queue_names=["default"], limit=limit, worker_id=worker_id)


def claim_as_a_worker(limit: int) -> list[ClaimedJob]:
    return store.claim(queue_names=["default"], limit=limit, worker_id="w")


def complete(*held: Job, outcome: Outcome = COMPLETED) -> set[int]:
    return store.settle([Settlement(job.pk, job.lease, outcome) for job in held])


@pytest.mark.parametrize("claim_by", [claim, claim_as_a_worker])
def test_two_claims_never_wait_for_each_other(session: MakeSession, claim_by: Callable[[int], list[Any]]) -> None:
    jobs.noop.defer_many([()] * 4)
    other = session()
    other.begin()
    other_jobs = other(claim_by, 2)
    with within(10):
        own_jobs = claim_by(10)
    other.rollback()
    assert len(own_jobs) == 2
    assert {job.id for job in own_jobs}.isdisjoint({job.id for job in other_jobs})
    assert len(claim_by(10)) == 2, "the jobs of the rolled back claim are free again"


def test_a_settle_that_comes_while_the_job_is_being_recovered_loses(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recovering, settling = session(), session()
    recovering.begin()
    assert len(recovering(store.recover, worker_ids=["w"])) == 1
    pending_settle = settling.start(complete, job)
    settling.wait_until_blocked()
    recovering.commit()
    assert pending_settle.result(20) == set()
    assert state(job)["status"] == "queued"


def test_a_recovery_that_comes_while_the_job_is_being_settled_skips_it(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    settling = session()
    settling.begin()
    assert settling(complete, job) == {job.pk}
    with within(10):
        assert store.recover(worker_ids=["w"]) == []
    settling.commit()
    assert store.recover(worker_ids=["w"]) == []
    assert state(job)["status"] == "completed"


def test_a_settle_is_written_if_the_recovery_of_its_job_is_rolled_back(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recovering, settling = session(), session()
    recovering.begin()
    recovering(store.recover, worker_ids=["w"])
    pending_settle = settling.start(complete, job)
    settling.wait_until_blocked()
    recovering.rollback()
    assert pending_settle.result(20) == {job.pk}


def test_two_recoveries_at_once_do_not_take_the_same_job(session: MakeSession) -> None:
    for _ in range(4):
        make_job("running")
    other = session()
    other.begin()
    other_jobs = other(store.recover, worker_ids=["w"], limit=2)
    with within(10):
        own_jobs = store.recover(worker_ids=["w"])
    other.commit()
    assert sorted(job.id for job in [*own_jobs, *other_jobs]) == sorted(Job.objects.values_list("pk", flat=True))
    assert set(Job.objects.values_list("lease", flat=True)) == {2}


def test_a_discard_does_not_wait_for_a_settle_and_succeeds_after_its_commit(session: MakeSession) -> None:
    """A discard skips the job while it runs. After the commit of the settle, a second discard changes the job."""
    make_job()
    (job,) = claim()
    settling = session()
    settling.begin()
    settling(complete, job, outcome=Outcome("scheduled", delay=60))
    with within(10):
        assert store.discard([job.pk]).keys() == set()
    settling.commit()
    assert store.discard([job.pk]).keys() == {job.pk}
    assert complete(job) == set()


def test_a_claim_does_not_take_a_job_that_is_being_discarded(session: MakeSession) -> None:
    job = make_job()
    discarding = session()
    discarding.begin()
    discarding(store.discard, [job.pk])
    with within(10):
        assert claim() == []
    discarding.commit()
    assert claim() == []


def test_a_discard_does_not_take_a_job_that_is_being_claimed(session: MakeSession) -> None:
    job = make_job()
    claiming = session()
    claiming.begin()
    assert len(claiming(claim)) == 1
    with within(10):
        assert store.discard([job.pk]).keys() == set()
    claiming.commit()
    assert store.discard([job.pk]).keys() == set()


def test_a_job_that_is_being_retried_is_not_pruned(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    job = make_job("failed")
    retrying = session()
    retrying.begin()
    assert retrying(store.retry, [job.pk]).keys() == {job.pk}
    with within(10):
        assert store.prune() == {}
    retrying.commit()
    assert store.prune() == {}
    assert state(job)["status"] == "queued"


def test_a_job_chosen_to_be_pruned_is_not_retried_before_it_is_deleted(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    make_job("failed")
    other = session()
    retried: list[dict[int, str]] = []

    class StoreThatRetriesMeanwhile(Store):
        def expired(self, **options: Any) -> list[int]:
            ids = super().expired(**options)
            retried.append(other(store.retry, ids))
            return ids

    assert StoreThatRetriesMeanwhile("default").prune() == {"failed": 1}
    assert retried == [{}]
    assert not Job.objects.exists()


def test_a_job_that_is_being_pruned_is_not_retried(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    job = make_job("failed")
    pruning = session()
    pruning.begin()
    assert pruning(store.prune) == {"failed": 1}
    with within(10):
        assert store.retry([job.pk]).keys() == set()
    pruning.commit()
    assert store.retry([job.pk]).keys() == set()
    assert not Job.objects.exists()


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_retry_waits_while_another_session_takes_its_unique_key(session: MakeSession, commits: bool) -> None:
    failed, other = make_job("failed", unique_key="k"), make_job("failed")
    deferring, retrying = session(), session()
    deferring.begin()
    deferring(jobs.noop.using(unique_key="k").defer)
    pending_retry = retrying.start(store.retry, [failed.pk, other.pk])
    retrying.wait_until_blocked()
    deferring.commit() if commits else deferring.rollback()
    assert pending_retry.result(20).keys() == ({other.pk} if commits else {failed.pk, other.pk})
    assert Job.objects.unfinished().filter(unique_key="k").count() == 1


def test_a_unique_key_taken_meanwhile_does_not_break_the_transaction_of_a_retry(session: MakeSession) -> None:
    failed, other = make_job("failed", unique_key="k"), make_job("failed")
    deferring, retrying = session(), session()
    deferring.begin()
    deferring(jobs.noop.using(unique_key="k").defer)
    retrying.begin()
    pending_retry = retrying.start(store.retry, [failed.pk, other.pk])
    retrying.wait_until_blocked()
    deferring.commit()
    assert pending_retry.result(20) == {other.pk: "queued"}
    retrying.commit()
    assert (state(failed)["status"], state(other)["status"]) == ("failed", "queued")


def test_a_defer_whose_key_is_being_retried_gets_the_retried_job(session: MakeSession) -> None:
    failed = make_job("failed", unique_key="k")
    retrying, deferring = session(), session()
    retrying.begin()
    retrying(store.retry, [failed.pk])
    pending_defer = deferring.start(jobs.noop.using(unique_key="k").defer)
    deferring.wait_until_blocked()
    retrying.commit()
    returned_job = pending_defer.result(20)
    assert (returned_job.pk, returned_job.created) == (failed.pk, False)


def test_only_one_of_two_retries_changes_a_job(session: MakeSession) -> None:
    job = make_job("failed")
    other = session()
    other.begin()
    assert other(store.retry, [job.pk]).keys() == {job.pk}
    with within(10):
        assert store.retry([job.pk]).keys() == set()
    other.commit()
    assert store.retry([job.pk]).keys() == set()
    assert state(job)["lease"] == job.lease + 1


def disable_hash_and_merge_joins() -> None:
    """Make the planner of this session look up jobs one by one, as it does in a table of millions."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")


def test_a_worker_sees_the_heartbeat_that_its_supervisor_writes_meanwhile(session: MakeSession) -> None:
    worker = make_worker(heartbeat=-timedelta(hours=1))
    row = {name: value for name, value in state(worker).items() if name not in ("started_at", "heartbeat_at")}
    supervisor, worker_session = session(), session()
    supervisor.begin()
    supervisor(store.heartbeat_workers, [row])
    pending_heartbeat = worker_session.start(store.heartbeat_worker, worker.pk)
    worker_session.wait_until_blocked()
    supervisor.commit()
    heartbeat_times = pending_heartbeat.result(20)
    assert heartbeat_times is not None
    assert heartbeat_times[0] - worker.heartbeat_at >= timedelta(hours=1)


def release(*held: Job) -> set[int]:
    return store.release(map(lease_of, held))


@pytest.mark.parametrize("end_jobs", [complete, release])
def test_batches_that_end_the_same_jobs_in_opposite_order_do_not_deadlock(
    session: MakeSession, end_jobs: Callable[..., Any]
) -> None:
    """Both batches begin while a third transaction has locked a job in the middle.

    If the batches locked jobs in their own order, each would lock one half of the jobs, and wait for the other half.
    """
    jobs.noop.defer_many([()] * 9)
    held = claim()
    middle_locker, ascending, descending = session(), session(), session()
    for settling_session in (ascending, descending):
        settling_session(disable_hash_and_merge_joins)
    middle_locker.begin()
    middle_locker(complete, held[4])
    first = ascending.start(complete, *held)
    ascending.wait_until_blocked()
    second = descending.start(end_jobs, *reversed(held))
    descending.wait_until_blocked()
    middle_locker.rollback()
    assert sorted([*first.result(20), *second.result(20)]) == [job.pk for job in held], (
        "each job was ended by one of the two batches"
    )
    assert set(Job.objects.values_list("lease", flat=True)) == {2}


def test_a_discard_of_many_jobs_does_not_wait_for_a_settle_in_the_opposite_order(session: MakeSession) -> None:
    jobs.noop.defer_many([()] * 6)
    held = claim(3)
    ids = list(Job.objects.order_by("-pk").values_list("pk", flat=True))
    middle_locker, settling = session(), session()
    middle_locker.begin()
    middle_locker(complete, held[1])
    pending_settle = settling.start(complete, *held, outcome=Outcome("scheduled"))
    settling.wait_until_blocked()
    with within(10):
        assert len(store.discard(ids)) == 3
    middle_locker.rollback()
    assert pending_settle.result(20) == {job.pk for job in held}


def test_batches_of_admit_recover_and_prune_by_two_supervisors_share_the_work(
    session: MakeSession, settings: Any
) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    for _ in range(4):
        make_job("scheduled", run_after=timedelta(seconds=-1))
        make_job("completed")
    other = session()
    other.begin()
    assert other(store.admit, limit=3).by_queue == {"default": 3}
    assert other(store.prune, limit=3) == {"completed": 3}
    with within(10):
        assert store.admit().by_queue == {"default": 1}
        assert store.prune() == {"completed": 1}
    other.commit()
    assert (Job.objects.queued().count(), Job.objects.count()) == (4, 4)


def test_a_job_that_is_being_admitted_is_not_discarded_and_vice_versa(
    session: MakeSession,
) -> None:
    first, second = (make_job("scheduled", run_after=timedelta(seconds=-1)) for _ in range(2))
    admitting, discarding = session(), session()
    admitting.begin()
    discarding.begin()
    assert admitting(store.admit, limit=1).by_queue == {"default": 1}
    with within(10):
        assert discarding(store.discard, [first.pk, second.pk]).keys() == {second.pk}
        assert store.admit().by_queue == {}, "one job is being admitted, the other is being discarded"
        assert claim() == [], "neither job can be claimed"
    admitting.commit()
    discarding.rollback()
    assert store.admit().by_queue == {"default": 1}, "a discard that was rolled back never happened"
    assert store.discard([first.pk, second.pk]).keys() == {first.pk, second.pk}


def release_all(*held: Job) -> set[int]:
    return store.release_orphans("w", known=[])


def recover(*held: Job) -> list[Any]:
    return store.recover(worker_ids=["w"])


def heartbeat(job: Job) -> bool:
    return store.heartbeat_job((job.pk, job.lease))


WITH_EACH_WAY_TO_TAKE_A_LEASE = pytest.mark.parametrize("take_lease", [recover, release_all, release])


@WITH_EACH_WAY_TO_TAKE_A_LEASE
@pytest.mark.parametrize("use_lease", [complete, release, heartbeat])
def test_a_settle_waits_for_a_recovery_of_its_job_and_writes_nothing(
    session: MakeSession, take_lease: Callable[..., Any], use_lease: Callable[..., Any]
) -> None:
    make_job()
    (job,) = claim()
    taking, using = session(), session()
    taking.begin()
    assert len(taking(take_lease, job)) == 1
    pending_use = using.start(use_lease, job)
    using.wait_until_blocked()
    taking.commit()
    assert not pending_use.result(20)
    assert (state(job)["status"], state(job)["lease"]) == ("queued", job.lease + 1)


@pytest.mark.parametrize("take_lease", [recover, release_all])
@pytest.mark.parametrize("use_lease", [complete, release, heartbeat])
def test_a_lease_with_which_another_session_settles_is_not_taken(
    session: MakeSession, take_lease: Callable[..., Any], use_lease: Callable[..., Any]
) -> None:
    make_job()
    (job,) = claim()
    using = session()
    using.begin()
    assert using(use_lease, job)
    with within(10):
        assert not take_lease(job)
    using.commit()


def test_a_settle_with_a_lost_lease_writes_nothing_while_the_job_is_discarded(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recover(job)
    discarding = session()
    discarding.begin()
    assert discarding(store.discard, [job.pk]).keys() == {job.pk}
    with within(10):
        assert complete(job) == set(), "the settle does not wait: the lease was lost before"
    discarding.commit()
    assert state(job)["status"] == "discarded"


def test_a_job_that_is_being_settled_is_not_pruned_and_vice_versa(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    make_job()
    (job,) = claim()
    settling, pruning = session(), session()
    settling.begin()
    settling(complete, job)
    with within(10):
        assert store.prune() == {}
    settling.commit()
    pruning.begin()
    assert pruning(store.prune) == {"completed": 1}
    with within(10):
        assert complete(job) == set()
    pruning.commit()
    assert not Job.objects.exists()


def test_a_job_that_is_being_retried_is_claimed_only_after_the_retry(session: MakeSession) -> None:
    job = make_job("failed", attempts=10)
    retrying = session()
    retrying.begin()
    retrying(store.retry, [job.pk])
    with within(10):
        assert claim() == []
    retrying.commit()
    assert [(job_claimed.pk, job_claimed.attempts, job_claimed.lease) for job_claimed in claim()] == [
        (job.pk, 1, job.lease + 2)
    ]


@pytest.mark.parametrize(("verb", "status"), [(store.discard, "queued"), (store.retry, "failed")])
def test_two_verbs_of_operators_in_opposite_order_do_not_wait_for_each_other(
    session: MakeSession, verb: Callable[..., Any], status: str
) -> None:
    ids = [make_job(status).pk for _ in range(6)]
    other = session()
    other.begin()
    assert other(verb, ids[:3]).keys() == set(ids[:3])
    with within(10):
        assert verb(ids[::-1]).keys() == set(ids[3:])
    other.commit()
    assert verb(ids).keys() == set()
