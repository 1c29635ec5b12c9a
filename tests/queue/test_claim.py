"""`claim`: which jobs, in which order, how many, and for whom."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_skipqueue.models import Job, Status
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import ClaimedJob

from ..app import jobs
from ..app.rows import STATUSES, are_in_order, lease_of, make_job, make_worker, settle_and_claim, state

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)


def claim(*queue_names: str, limit: int = 100, worker_id: str = "w") -> list[Job]:
    return Job.objects.claim(queue_names=queue_names or ("default",), limit=limit, worker_id=worker_id)


def claim_to_run(*queue_names: str, limit: int = 100, worker_id: str = "w") -> list[ClaimedJob]:
    return settle_and_claim([], queue_names=queue_names or ("default",), limit=limit, worker_id=worker_id)[1]


WITH_BOTH_WAYS_TO_CLAIM = pytest.mark.parametrize(
    "claim_jobs", [claim, claim_to_run], ids=["claim", "settle_and_claim"]
)


def ids_of(jobs: list[Any]) -> list[int]:
    return [job.id for job in jobs]


@pytest.mark.core
@pytest.mark.parametrize("status", STATUSES)
def test_only_queued_jobs_are_claimed(status: str) -> None:
    job = make_job(status)
    assert ids_of(claim()) == ([job.pk] if status == "queued" else [])


@pytest.mark.core
@WITH_BOTH_WAYS_TO_CLAIM
def test_a_claimed_job_is_running_for_its_worker_with_an_attempt_charged_and_a_new_lease(
    claim_jobs: Callable[..., Any],
) -> None:
    job_before = make_job(attempts=2, lease=7, run_after=timedelta(minutes=-1))
    (claimed_job,) = claim_jobs(worker_id="me")
    stored = state(job_before)
    job = Job.objects.get()
    if isinstance(claimed_job, Job):
        assert {name: getattr(claimed_job, name) for name in stored} == stored
    assert (job.status, job.locked_by, job.attempts, job.lease) == (Status.RUNNING, "me", 2 + 1, 7 + 1)
    assert job.locked_at == job.started_at
    assert are_in_order(job_before.run_after, job.started_at)
    changed_columns = {name for name in stored if stored[name] != getattr(job_before, name)}
    assert changed_columns == {"status", "locked_by", "attempts", "lease", "locked_at", "started_at"}


def test_a_claim_returns_only_the_columns_that_running_a_job_needs() -> None:
    jobs.gather.using(queue_name="q", priority=3, max_attempts=5).defer(1, "ü", flag=True)
    (job,) = claim_to_run("q", worker_id="me")
    row = Job.objects.get()
    assert job == ClaimedJob(
        id=row.pk,
        lease=1,
        task="tests.app.jobs.gather",
        queue_name="q",
        args='[1, "ü"]',
        kwargs='{"flag": true}',
        attempt=1,
        max_attempts=5,
        priority=3,
        run_after=job.run_after,
        locked_at=job.locked_at,
        metadata="{}",
        claim_seconds=job.claim_seconds,
        claimed_at=job.claimed_at,
    )
    assert row.locked_at is not None
    assert (job.run_after, job.locked_at) == pytest.approx((row.run_after.timestamp(), row.locked_at.timestamp()))
    assert 0 < job.claim_seconds < 60
    assert job.claimed_at == pytest.approx(time.monotonic(), abs=60)
    assert job.wait_ms == pytest.approx((row.locked_at - row.run_after).total_seconds() * 1000, abs=0.1)
    assert (row.status, row.locked_by, row.attempts, row.lease) == ("running", "me", 1, 1)


@pytest.mark.core
@WITH_BOTH_WAYS_TO_CLAIM
def test_jobs_are_claimed_in_the_listed_order_of_queues_then_by_priority_time_and_id(
    claim_jobs: Callable[..., list[Any]],
) -> None:
    expected = [
        (queue, priority, minutes)
        for queue in ("mail", "default", "a")
        for priority in (100, 7, 0, -1, -100)
        for minutes in (-30, -20, -20, -1)
    ]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    created_ids: dict[tuple[str, int, int], list[int]] = {}
    for queue, priority, minutes in random.sample(expected, len(expected)):
        job = make_job(queue_name=queue, priority=priority, run_after=noon + timedelta(minutes=minutes))
        created_ids.setdefault((queue, priority, minutes), []).append(job.pk)
    expected_ids = [created_ids[key].pop(0) for key in expected]

    claimed_ids = ids_of(claim_jobs("mail", "default", "a", limit=7))
    assert claimed_ids == expected_ids[:7]
    while further_ids := ids_of(claim_jobs("mail", "default", "a", limit=11)):
        claimed_ids += further_ids
    assert claimed_ids == expected_ids


@pytest.mark.core
@WITH_BOTH_WAYS_TO_CLAIM
def test_no_job_is_claimed_from_a_queue_that_is_not_listed(claim_jobs: Callable[..., list[Any]]) -> None:
    job_in_mail, _job_in_default = make_job(queue_name="mail"), make_job(queue_name="default")
    assert ids_of(claim_jobs("mail", "no such queue")) == [job_in_mail.pk]


@WITH_BOTH_WAYS_TO_CLAIM
@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11])
def test_the_limit_is_never_exceeded(claim_jobs: Callable[..., list[Any]], limit: int) -> None:
    for queue in ("a", "b"):
        jobs.noop.using(queue_name=queue).defer_many([()] * 5)
    assert len(claim_jobs("a", "b", limit=limit)) == min(limit, 10)
    assert Job.objects.running().count() == min(limit, 10)


@WITH_BOTH_WAYS_TO_CLAIM
def test_a_queue_listed_twice_is_claimed_once(claim_jobs: Callable[..., list[Any]]) -> None:
    jobs.noop.defer_many([()] * 5)
    claimed_ids = ids_of(claim_jobs("default", "default", limit=10))
    assert len(claimed_ids) == len(set(claimed_ids)) == 5


@WITH_BOTH_WAYS_TO_CLAIM
@pytest.mark.parametrize("mode", ["auto", "force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(
    "jobs_in_statistics", [0, 20_000], ids=["statistics of an empty table", "statistics of a full table"]
)
def test_the_limit_holds_on_stale_statistics(
    claim_jobs: Callable[..., list[Any]], jobs_in_statistics: int, mode: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = %s", [mode])
        try:
            jobs.noop.defer_many([()] * jobs_in_statistics)
            cursor.execute("ANALYZE skipqueue_job")
            cursor.execute("TRUNCATE skipqueue_job")
            jobs.noop.defer_many([()] * (2_000 if not jobs_in_statistics else 20))
            for _ in range(7):  # psycopg prepares a statement after a few executions
                assert len(claim_jobs("default", "other", limit=2)) == 2
            assert Job.objects.running().count() == 14  # seven claims of two jobs
        finally:
            cursor.execute("RESET plan_cache_mode")
            cursor.execute("TRUNCATE skipqueue_job")
            cursor.execute("ANALYZE skipqueue_job")


@WITH_BOTH_WAYS_TO_CLAIM
def test_the_limit_holds_whatever_plan_is_chosen(claim_jobs: Callable[..., list[Any]]) -> None:
    jobs.noop.defer_many([()] * 500)
    switches = ["enable_indexscan", "enable_bitmapscan", "enable_hashjoin", "enable_nestloop", "enable_seqscan"]
    with connection.cursor() as cursor:
        for switch in switches:
            cursor.execute(f"SET {switch} = off")
        try:
            for expected in range(3, 33, 3):
                assert len(claim_jobs(limit=3)) == 3
                assert Job.objects.running().count() == expected
        finally:
            for switch in switches:
                cursor.execute(f"RESET {switch}")


@pytest.mark.core
@WITH_BOTH_WAYS_TO_CLAIM
def test_rows_that_another_transaction_has_locked_are_skipped_without_waiting(
    claim_jobs: Callable[..., list[Any]], connect: Callable[..., Any]
) -> None:
    created_ids = jobs.noop.defer_many([()] * 6)
    other_connection = connect(autocommit=False)
    other_connection.execute(
        "SELECT FROM skipqueue_job WHERE id = ANY (%s) FOR UPDATE", [[created_ids[0], created_ids[2]]]
    )
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
        assert ids_of(claim_jobs(limit=3)) == [created_ids[1], created_ids[3], created_ids[4]]
        cursor.execute("RESET lock_timeout")
    other_connection.rollback()
    assert ids_of(claim_jobs(limit=3)) == [created_ids[0], created_ids[2], created_ids[5]]


def test_a_claim_locks_no_row_that_it_does_not_take(connect: Callable[..., Any]) -> None:
    for queue in ("a", "b", "c"):
        jobs.noop.using(queue_name=queue).defer_many([()] * 4)
    with transaction.atomic():
        claimed_ids = ids_of(claim("a", "b", "c", limit=6))
        unlocked_rows = connect().execute("SELECT id FROM skipqueue_job FOR UPDATE SKIP LOCKED").fetchall()
        assert len(claimed_ids) == 6
        assert {id for (id,) in unlocked_rows} == set(Job.objects.values_list("id", flat=True)) - set(claimed_ids)


@WITH_BOTH_WAYS_TO_CLAIM
def test_a_job_that_another_worker_claims_meanwhile_is_not_claimed_again(
    claim_jobs: Callable[..., list[Any]], session: Callable[[], Any]
) -> None:
    jobs.noop.defer_many([()] * 10)
    other_session = session()
    other_session.begin()
    ids_of_other = ids_of(other_session(claim, limit=4))
    own_ids = ids_of(claim_jobs(limit=4))
    other_session.commit()
    remaining_ids = ids_of(claim_jobs(limit=4))
    assert len({*ids_of_other, *own_ids, *remaining_ids}) == 10


def test_a_rolled_back_claim_leaves_the_jobs_queued(session: Callable[[], Any]) -> None:
    jobs.noop.defer_many([()] * 3)
    other_session = session()
    other_session.begin()
    assert len(other_session(claim)) == 3
    other_session.rollback()
    assert [(job.attempts, job.lease) for job in claim()] == [(1, 1)] * 3


@WITH_BOTH_WAYS_TO_CLAIM
def test_eight_claims_at_once_never_get_one_job_twice_nor_more_than_the_limit(
    claim_jobs: Callable[..., list[Any]],
) -> None:
    jobs.noop.defer_many([()] * 2_000)

    def drain(worker: int) -> list[int]:
        claimed_ids: list[int] = []
        limits = random.Random(worker)
        try:
            while claimed := claim_jobs(limit=(limit := limits.randint(1, 25)), worker_id=str(worker)):
                assert len(claimed) <= limit
                claimed_ids += ids_of(claimed)
        finally:
            connections.close_all()
        return claimed_ids

    with ThreadPoolExecutor(8) as pool:
        claimed_ids = [id for drained in pool.map(drain, range(8)) for id in drained]
    assert len(claimed_ids) == len(set(claimed_ids)), "no job was claimed twice"
    # Two claims at the front of the queue may skip each other's locked rows. The next claim finds the skipped rows.
    claimed_ids += ids_of(claim(limit=2_000))
    assert sorted(claimed_ids) == sorted(Job.objects.values_list("id", flat=True))
    assert set(Job.objects.values_list("attempts", "lease")) == {(1, 1)}


@pytest.mark.core
@WITH_BOTH_WAYS_TO_CLAIM
def test_a_released_job_keeps_its_position_in_the_queue(claim_jobs: Callable[..., list[Any]]) -> None:
    created_ids = jobs.noop.defer_many([()] * 3)
    first, *_ = claim(limit=2)
    store.release([lease_of(first)])
    assert ids_of(claim_jobs(limit=10)) == [created_ids[0], created_ids[2]]


@pytest.mark.core
def test_queues_with_jobs_are_listed_alphabetically() -> None:
    assert store.queues_with_jobs() == []
    for queue in ("mail", "default", "a", "Ł", "mail"):
        make_job(queue_name=queue)
    for status in STATUSES:
        if status != "queued":
            make_job(status, queue_name=status)
    names = store.queues_with_jobs()
    assert sorted(names) == ["a", "default", "mail", "Ł"]
    assert store.queues_with_jobs(limit=2) == names[:2]
    assert store.queues_with_jobs(after=names[1], limit=5) == names[2:]
    assert store.queues_with_jobs(after=names[3]) == []


@pytest.mark.parametrize("claim_by", [Job.objects.claim, partial(settle_and_claim, [])])
def test_a_string_in_place_of_a_list_of_queues_is_refused(claim_by: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"queue_names must be a list of names, not the str 'gpu': say \['gpu'\]"):
        claim_by(queue_names="gpu", limit=1, worker_id="w")


def test_settle_and_claim_claims_nothing_without_queues_or_with_limit_0(worker_id: str) -> None:
    jobs.noop.defer_many([()] * 3)
    for queue_names, limit in ([], 5), (["default"], 0):
        assert settle_and_claim([], worker_id=worker_id, queue_names=queue_names, limit=limit) == (set(), [])
    assert Job.objects.queued().count() == 3


def test_release_orphans_releases_jobs_that_a_worker_holds_without_knowing() -> None:
    make_worker()
    jobs.noop.defer_many([()] * 4)
    own_jobs, jobs_of_other_worker = claim(limit=3, worker_id="me"), claim(limit=1, worker_id="another")
    known, *orphans = own_jobs
    assert store.release_orphans("me", known=[known.pk]) == {job.pk for job in orphans}
    assert {state(job)["status"] for job in (known, *jobs_of_other_worker)} == {"running"}
    for job in orphans:
        stored = state(job)
        assert (stored["status"], stored["attempts"], stored["lease"], stored["locked_by"]) == (
            "queued",
            0,
            job.lease + 1,
            "",
        )
    assert store.release_orphans("me", known=[known.pk]) == set()
