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
    command += map(str, (1, 7, 20, 50, 50, 100, 100, 250))  # how many jobs each process claims at once
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


def complete(*held_jobs: Job, outcome: Outcome = COMPLETED) -> set[int]:
    return store.settle([Settlement(job.pk, job.lease, outcome) for job in held_jobs])


@pytest.mark.parametrize("claim_by", [claim, claim_as_a_worker])
def test_two_claims_never_wait_for_each_other(session: MakeSession, claim_by: Callable[[int], list[Any]]) -> None:
    jobs.noop.defer_many([()] * 4)
    other_session = session()
    other_session.begin()
    other_jobs = other_session(claim_by, 2)
    with within(10):
        own_jobs = claim_by(10)
    other_session.rollback()
    assert len(own_jobs) == 2
    assert {job.id for job in own_jobs}.isdisjoint({job.id for job in other_jobs})
    assert len(claim_by(10)) == 2, "the jobs of the rolled back claim are free again"


def test_a_settle_that_comes_while_the_job_is_being_recovered_loses(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recovering_session, settling_session = session(), session()
    recovering_session.begin()
    assert len(recovering_session(store.recover, worker_ids=["w"])) == 1
    pending_settle = settling_session.start(complete, job)
    settling_session.wait_until_blocked()
    recovering_session.commit()
    assert pending_settle.result(20) == set()
    assert state(job)["status"] == "queued"


def test_a_recovery_that_comes_while_the_job_is_being_settled_skips_it(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    settling_session = session()
    settling_session.begin()
    assert settling_session(complete, job) == {job.pk}
    with within(10):
        assert store.recover(worker_ids=["w"]) == []
    settling_session.commit()
    assert store.recover(worker_ids=["w"]) == []
    assert state(job)["status"] == "completed"


def test_a_settle_is_written_if_the_recovery_of_its_job_is_rolled_back(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recovering_session, settling_session = session(), session()
    recovering_session.begin()
    recovering_session(store.recover, worker_ids=["w"])
    pending_settle = settling_session.start(complete, job)
    settling_session.wait_until_blocked()
    recovering_session.rollback()
    assert pending_settle.result(20) == {job.pk}


def test_two_recoveries_at_once_do_not_take_the_same_job(session: MakeSession) -> None:
    for _ in range(4):
        make_job("running")
    other_session = session()
    other_session.begin()
    other_jobs = other_session(store.recover, worker_ids=["w"], limit=2)
    with within(10):
        own_jobs = store.recover(worker_ids=["w"])
    other_session.commit()
    assert sorted(job.id for job in [*own_jobs, *other_jobs]) == sorted(Job.objects.values_list("pk", flat=True))
    assert set(Job.objects.values_list("lease", flat=True)) == {2}


def test_a_discard_does_not_wait_for_a_settle_and_succeeds_after_its_commit(session: MakeSession) -> None:
    """A discard skips the job while it runs. After the commit of the settle, a second discard changes the job."""
    make_job()
    (job,) = claim()
    settling_session = session()
    settling_session.begin()
    settling_session(complete, job, outcome=Outcome("scheduled", delay=60))
    with within(10):
        assert store.discard([job.pk]).keys() == set()
    settling_session.commit()
    assert store.discard([job.pk]).keys() == {job.pk}
    assert complete(job) == set()


def test_a_claim_does_not_take_a_job_that_is_being_discarded(session: MakeSession) -> None:
    job = make_job()
    discarding_session = session()
    discarding_session.begin()
    discarding_session(store.discard, [job.pk])
    with within(10):
        assert claim() == []
    discarding_session.commit()
    assert claim() == []


def test_a_discard_does_not_take_a_job_that_is_being_claimed(session: MakeSession) -> None:
    job = make_job()
    claiming_session = session()
    claiming_session.begin()
    assert len(claiming_session(claim)) == 1
    with within(10):
        assert store.discard([job.pk]).keys() == set()
    claiming_session.commit()
    assert store.discard([job.pk]).keys() == set()


def test_a_job_that_is_being_retried_is_not_pruned(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    job = make_job("failed")
    retrying_session = session()
    retrying_session.begin()
    assert retrying_session(store.retry, [job.pk]).keys() == {job.pk}
    with within(10):
        assert store.prune() == {}
    retrying_session.commit()
    assert store.prune() == {}
    assert state(job)["status"] == "queued"


def test_a_job_chosen_to_be_pruned_is_not_retried_before_it_is_deleted(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    make_job("failed")
    other_session = session()
    jobs_retried: list[dict[int, str]] = []

    class StoreThatRetriesMeanwhile(Store):
        """Has another session retry the jobs that the store is about to prune."""

        def expired(self, **options: Any) -> list[int]:
            ids = super().expired(**options)
            jobs_retried.append(other_session(store.retry, ids))
            return ids

    assert StoreThatRetriesMeanwhile("default").prune() == {"failed": 1}
    assert jobs_retried == [{}], "the retry changed no job"
    assert not Job.objects.exists()


def test_a_job_that_is_being_pruned_is_not_retried(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
    job = make_job("failed")
    pruning_session = session()
    pruning_session.begin()
    assert pruning_session(store.prune) == {"failed": 1}
    with within(10):
        assert store.retry([job.pk]).keys() == set()
    pruning_session.commit()
    assert store.retry([job.pk]).keys() == set()
    assert not Job.objects.exists()


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_retry_waits_while_another_session_takes_its_unique_key(session: MakeSession, commits: bool) -> None:
    failed_job, other_job = make_job("failed", unique_key="k"), make_job("failed")
    deferring_session, retrying_session = session(), session()
    deferring_session.begin()
    deferring_session(jobs.noop.using(unique_key="k").defer)
    pending_retry = retrying_session.start(store.retry, [failed_job.pk, other_job.pk])
    retrying_session.wait_until_blocked()
    deferring_session.commit() if commits else deferring_session.rollback()
    assert pending_retry.result(20).keys() == ({other_job.pk} if commits else {failed_job.pk, other_job.pk})
    assert Job.objects.unfinished().filter(unique_key="k").count() == 1


def test_a_unique_key_taken_meanwhile_does_not_break_the_transaction_of_a_retry(session: MakeSession) -> None:
    failed_job, other_job = make_job("failed", unique_key="k"), make_job("failed")
    deferring_session, retrying_session = session(), session()
    deferring_session.begin()
    deferring_session(jobs.noop.using(unique_key="k").defer)
    retrying_session.begin()
    pending_retry = retrying_session.start(store.retry, [failed_job.pk, other_job.pk])
    retrying_session.wait_until_blocked()
    deferring_session.commit()
    assert pending_retry.result(20) == {other_job.pk: "queued"}
    retrying_session.commit()
    assert (state(failed_job)["status"], state(other_job)["status"]) == ("failed", "queued")


def test_a_defer_whose_key_is_being_retried_gets_the_retried_job(session: MakeSession) -> None:
    failed_job = make_job("failed", unique_key="k")
    retrying_session, deferring_session = session(), session()
    retrying_session.begin()
    retrying_session(store.retry, [failed_job.pk])
    pending_defer = deferring_session.start(jobs.noop.using(unique_key="k").defer)
    deferring_session.wait_until_blocked()
    retrying_session.commit()
    returned_job = pending_defer.result(20)
    assert (returned_job.pk, returned_job.created) == (failed_job.pk, False)


def test_only_one_of_two_retries_changes_a_job(session: MakeSession) -> None:
    job = make_job("failed")
    other_session = session()
    other_session.begin()
    assert other_session(store.retry, [job.pk]).keys() == {job.pk}
    with within(10):
        assert store.retry([job.pk]).keys() == set()
    other_session.commit()
    assert store.retry([job.pk]).keys() == set()
    assert state(job)["lease"] == job.lease + 1


def disable_hash_and_merge_joins() -> None:
    """Make the planner of this session look up jobs one by one, as it does in a table of millions."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")


def test_a_worker_sees_the_heartbeat_that_its_supervisor_writes_meanwhile(session: MakeSession) -> None:
    worker = make_worker(heartbeat=-timedelta(hours=1))
    worker_row = {name: value for name, value in state(worker).items() if name not in ("started_at", "heartbeat_at")}
    supervisor, worker_session = session(), session()
    supervisor.begin()
    supervisor(store.heartbeat_workers, [worker_row])
    pending_heartbeat = worker_session.start(store.heartbeat_worker, worker.pk)
    worker_session.wait_until_blocked()
    supervisor.commit()
    heartbeat_times = pending_heartbeat.result(20)
    assert heartbeat_times is not None
    previous_heartbeat = heartbeat_times[0]
    assert previous_heartbeat - worker.heartbeat_at >= timedelta(hours=1)


def release(*held_jobs: Job) -> set[int]:
    return store.release(map(lease_of, held_jobs))


@pytest.mark.parametrize("end_jobs", [complete, release])
def test_batches_that_end_the_same_jobs_in_opposite_order_do_not_deadlock(
    session: MakeSession, end_jobs: Callable[..., Any]
) -> None:
    """Both batches begin while a third transaction has locked a job in the middle.

    If the batches locked jobs in their own order, each would lock one half of the jobs, and wait for the other half.
    """
    jobs.noop.defer_many([()] * 9)
    held_jobs = claim()
    session_locking_the_middle, ascending_session, descending_session = session(), session(), session()
    for session_of_batch in (ascending_session, descending_session):
        session_of_batch(disable_hash_and_merge_joins)
    session_locking_the_middle.begin()
    session_locking_the_middle(complete, held_jobs[4])
    first_batch = ascending_session.start(complete, *held_jobs)
    ascending_session.wait_until_blocked()
    second_batch = descending_session.start(end_jobs, *reversed(held_jobs))
    descending_session.wait_until_blocked()
    session_locking_the_middle.rollback()
    assert sorted([*first_batch.result(20), *second_batch.result(20)]) == [job.pk for job in held_jobs], (
        "each job was ended by one of the two batches"
    )
    assert set(Job.objects.values_list("lease", flat=True)) == {2}


def test_a_discard_of_many_jobs_does_not_wait_for_a_settle_in_the_opposite_order(session: MakeSession) -> None:
    jobs.noop.defer_many([()] * 6)
    held_jobs = claim(3)
    ids = list(Job.objects.order_by("-pk").values_list("pk", flat=True))
    session_locking_the_middle, settling_session = session(), session()
    session_locking_the_middle.begin()
    session_locking_the_middle(complete, held_jobs[1])
    pending_settle = settling_session.start(complete, *held_jobs, outcome=Outcome("scheduled"))
    settling_session.wait_until_blocked()
    with within(10):
        assert len(store.discard(ids)) == 3
    session_locking_the_middle.rollback()
    assert pending_settle.result(20) == {job.pk for job in held_jobs}


def test_batches_of_admit_recover_and_prune_by_two_supervisors_share_the_work(
    session: MakeSession, settings: Any
) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    for _ in range(4):
        make_job("scheduled", run_after=timedelta(seconds=-1))
        make_job("completed")
    other_supervisor = session()
    other_supervisor.begin()
    assert other_supervisor(store.admit, limit=3).by_queue == {"default": 3}
    assert other_supervisor(store.prune, limit=3) == {"completed": 3}
    with within(10):
        assert store.admit().by_queue == {"default": 1}
        assert store.prune() == {"completed": 1}
    other_supervisor.commit()
    assert (Job.objects.queued().count(), Job.objects.count()) == (4, 4)


def test_a_job_that_is_being_admitted_is_not_discarded_and_vice_versa(
    session: MakeSession,
) -> None:
    first_job, second_job = (make_job("scheduled", run_after=timedelta(seconds=-1)) for _ in range(2))
    admitting_session, discarding_session = session(), session()
    admitting_session.begin()
    discarding_session.begin()
    assert admitting_session(store.admit, limit=1).by_queue == {"default": 1}
    with within(10):
        assert discarding_session(store.discard, [first_job.pk, second_job.pk]).keys() == {second_job.pk}
        assert store.admit().by_queue == {}, "one job is being admitted, the other is being discarded"
        assert claim() == [], "neither job can be claimed"
    admitting_session.commit()
    discarding_session.rollback()
    assert store.admit().by_queue == {"default": 1}, "a discard that was rolled back never happened"
    assert store.discard([first_job.pk, second_job.pk]).keys() == {first_job.pk, second_job.pk}


def release_orphans(*held_jobs: Job) -> set[int]:
    return store.release_orphans("w", known=[])


def recover(*held_jobs: Job) -> list[Any]:
    return store.recover(worker_ids=["w"])


def heartbeat(job: Job) -> bool:
    return store.heartbeat_job((job.pk, job.lease))


WITH_EACH_WAY_TO_TAKE_A_LEASE = pytest.mark.parametrize("take_lease", [recover, release_orphans, release])


@WITH_EACH_WAY_TO_TAKE_A_LEASE
@pytest.mark.parametrize("use_lease", [complete, release, heartbeat])
def test_a_settle_waits_for_a_recovery_of_its_job_and_writes_nothing(
    session: MakeSession, take_lease: Callable[..., Any], use_lease: Callable[..., Any]
) -> None:
    make_job()
    (job,) = claim()
    taking_session, using_session = session(), session()
    taking_session.begin()
    assert len(taking_session(take_lease, job)) == 1
    pending_use = using_session.start(use_lease, job)
    using_session.wait_until_blocked()
    taking_session.commit()
    assert not pending_use.result(20)
    assert (state(job)["status"], state(job)["lease"]) == ("queued", job.lease + 1)


@pytest.mark.parametrize("take_lease", [recover, release_orphans])
@pytest.mark.parametrize("use_lease", [complete, release, heartbeat])
def test_a_lease_with_which_another_session_settles_is_not_taken(
    session: MakeSession, take_lease: Callable[..., Any], use_lease: Callable[..., Any]
) -> None:
    make_job()
    (job,) = claim()
    using_session = session()
    using_session.begin()
    assert using_session(use_lease, job)
    with within(10):
        assert not take_lease(job)
    using_session.commit()


def test_a_settle_with_a_lost_lease_writes_nothing_while_the_job_is_discarded(session: MakeSession) -> None:
    make_job()
    (job,) = claim()
    recover(job)
    discarding_session = session()
    discarding_session.begin()
    assert discarding_session(store.discard, [job.pk]).keys() == {job.pk}
    with within(10):
        assert complete(job) == set(), "the settle does not wait: the lease was lost before"
    discarding_session.commit()
    assert state(job)["status"] == "discarded"


def test_a_job_that_is_being_settled_is_not_pruned_and_vice_versa(session: MakeSession, settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    make_job()
    (job,) = claim()
    settling_session, pruning_session = session(), session()
    settling_session.begin()
    settling_session(complete, job)
    with within(10):
        assert store.prune() == {}
    settling_session.commit()
    pruning_session.begin()
    assert pruning_session(store.prune) == {"completed": 1}
    with within(10):
        assert complete(job) == set()
    pruning_session.commit()
    assert not Job.objects.exists()


def test_a_job_that_is_being_retried_is_claimed_only_after_the_retry(session: MakeSession) -> None:
    job = make_job("failed", attempts=10)
    retrying_session = session()
    retrying_session.begin()
    retrying_session(store.retry, [job.pk])
    with within(10):
        assert claim() == []
    retrying_session.commit()
    assert [(claimed_job.pk, claimed_job.attempts, claimed_job.lease) for claimed_job in claim()] == [
        (job.pk, 1, job.lease + 2)
    ]


@pytest.mark.parametrize(("verb", "status"), [(store.discard, "queued"), (store.retry, "failed")])
def test_two_verbs_of_operators_in_opposite_order_do_not_wait_for_each_other(
    session: MakeSession, verb: Callable[..., Any], status: str
) -> None:
    ids = [make_job(status).pk for _ in range(6)]
    other_operator = session()
    other_operator.begin()
    assert other_operator(verb, ids[:3]).keys() == set(ids[:3])
    with within(10):
        assert verb(ids[::-1]).keys() == set(ids[3:])
    other_operator.commit()
    assert verb(ids).keys() == set()
