"""In one round trip a worker settles, admits and claims: which jobs it claims, and which jobs it leaves queued."""

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.limits import admit as limits
from django_skipqueue.parts.limits.claim import CLAIM_OR_ADMIT
from django_skipqueue.parts.limits.sql import LOCK_KEYS
from django_skipqueue.queue.claim import CLAIM
from django_skipqueue.queue.parameters import Admitted, ExchangeResult, claim_values, in_claim_order
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import ClaimedJob, QueuePosition

from ...app.limit_rows import exchange, make_keyed
from ...app.rows import make_job, state
from ...app.sessions import Session

store = Store("default")
QUEUES = ["first", "default", "paused"]
OTHER_WORKER = "of another worker"

pytestmark = pytest.mark.django_db(transaction=True)


def complete_and_claim(
    *ended: Job, queue_names: Iterable[str] = ("default",), limit: int = 100, **options: Any
) -> tuple[ExchangeResult, Admitted]:
    """Complete these running jobs and claim, as their worker does."""
    settlements = [Settlement(job.pk, job.lease, COMPLETED) for job in ended]
    ended_ids = [job.pk for job in ended]
    return exchange(store, settlements, queue_names=[*queue_names], limit=limit, limited=ended_ids, **options)


def claimed_ids(result: tuple[ExchangeResult, Admitted]) -> list[int]:
    return [job.id for job in result[0].claimed()]


def admitted_by_queue(result: tuple[ExchangeResult, Admitted]) -> dict[str, int]:
    return dict(result[1].counts)


def status_of(job: Job) -> str:
    return str(state(job)["status"])


def test_the_next_job_of_a_key_is_claimed_without_being_queued_first() -> None:
    running, waiting = make_keyed("k", "running"), make_keyed("k")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        updates_before = number_of_updates(cursor)
        assert claimed_ids(complete_and_claim(running)) == [waiting.pk]
        assert number_of_updates(cursor) - updates_before == 2, "one statement settles a job, and one claims a job"
    claimed = state(waiting)
    assert (claimed["status"], claimed["attempts"], claimed["lease"], claimed["locked_by"]) == ("running", 1, 1, "w")
    assert claimed["started_at"] == claimed["locked_at"] is not None


def test_an_admitted_job_is_claimed_in_its_order_among_the_queued_jobs() -> None:
    running = make_keyed("k", "running")
    urgent, usual, late = (make_job(priority=number) for number in (5, 1, -5))
    waiting = make_keyed("k", priority=2)
    result = complete_and_claim(running, limit=2)
    assert claimed_ids(result) == [urgent.pk, waiting.pk]
    assert admitted_by_queue(result) == {"default": 1}
    assert (status_of(usual), status_of(late)) == ("queued", "queued")


def test_a_queued_job_displaced_by_an_admitted_job_can_be_claimed_by_another_worker_at_once() -> None:
    """A worker that claims at the same moment must not find the displaced job locked."""
    make_keyed("k")
    queued = [make_job(priority=number) for number in (1, -5, -6)]
    other_worker = Session()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(LOCK_KEYS, {"ids": [], "keys": ["k"]})
        cursor.execute(limits.CHOOSE_BY_KEY)
        cursor.execute(CLAIM_OR_ADMIT, claim_values(["default"], after={}, limit=2, worker_id="w"))
        assert len(cursor.fetchall()) == 2
        claimed = other_worker(store.claim, queue_names=["default"], limit=9, worker_id="v")
    other_worker.close()
    # the first worker has claimed the first queued job and the admitted job
    assert [job.id for job in claimed] == [job.pk for job in queued[1:]]


def test_an_admitted_job_is_queued_if_the_worker_has_no_free_slot_for_it() -> None:
    running, waiting = make_keyed("k", "running"), make_keyed("k", priority=-1)
    first = make_job()
    result = complete_and_claim(running, limit=1)
    assert claimed_ids(result) == [first.pk]
    assert status_of(waiting) == "queued"
    assert admitted_by_queue(result) == {"default": 1}


@pytest.mark.parametrize("options", [{"limit": 0}, {"queue_names": []}], ids=["no free slot", "no queue"])
def test_an_admitted_job_is_queued_by_a_worker_that_does_not_claim(options: dict[str, Any]) -> None:
    running, waiting = make_keyed("k", "running"), make_keyed("k")
    result = complete_and_claim(running, **options)
    assert claimed_ids(result) == []
    assert status_of(waiting) == "queued"
    assert admitted_by_queue(result) == {"default": 1}


@pytest.mark.parametrize(("queue_name", "expected_status"), [("elsewhere", "queued"), ("paused", "blocked")])
def test_an_admitted_job_of_another_queue_is_queued_unless_the_queue_is_paused(
    queue_name: str, expected_status: str
) -> None:
    Queue.pause("paused")
    running, waiting = make_keyed("k", "running"), make_keyed("k", queue_name=queue_name)
    result = complete_and_claim(running, queue_names=["default", "paused"])
    assert claimed_ids(result) == []
    assert status_of(waiting) == expected_status
    assert admitted_by_queue(result) == ({queue_name: 1} if expected_status == "queued" else {})


def test_an_admitted_job_is_queued_if_the_claimed_arguments_are_large_already() -> None:
    running = make_keyed("k", "running", capacity=2), make_keyed("k", "running", capacity=2)
    large = make_keyed("k", capacity=2, priority=1, args=[secrets.token_hex(4_000_000)])
    small = make_keyed("k", capacity=2)
    assert claimed_ids(complete_and_claim(*running)) == [large.pk]
    assert status_of(small) == "queued"


def test_the_position_of_a_claim_does_not_hide_an_admitted_job() -> None:
    running, waiting = make_keyed("k", "running"), make_keyed("k", priority=9)
    job_before_position = make_job(priority=8)
    after_priority_1 = QueuePosition(rank=-1, run_after=0.0, id=0)  # the rank is the negated priority
    assert claimed_ids(complete_and_claim(running, after={"default": after_priority_1})) == [waiting.pk]
    assert status_of(job_before_position) == "queued"


def test_a_job_that_waits_for_its_rate_holds_the_permit_and_does_not_run() -> None:
    running = make_keyed("k", "running")
    with_rate = make_keyed("k", rate_key="r", rate_interval=60.0, rate_burst=1)
    result = complete_and_claim(running)
    assert claimed_ids(result) == []
    assert (status_of(with_rate), state(with_rate)["gate"]) == ("blocked", "rate")
    assert (admitted_by_queue(result), set(result[1].later)) == ({}, {"r"})


def test_a_fair_job_becomes_due_now_whether_it_runs_or_is_queued() -> None:
    running = make_keyed("k", "running", kind="fair", capacity=1)
    fair = [make_keyed("k", kind="fair", capacity=1, run_after=timedelta(hours=-1)) for _ in range(2)]
    queued = make_job()
    assert claimed_ids(complete_and_claim(running, limit=2)) == [queued.pk, fair[0].pk]
    states = [state(job) for job in fair]
    assert [job_state["status"] for job_state in states] == ["running", "queued"]
    a_minute_before = state(running)["finished_at"] - timedelta(seconds=60)
    assert all(job_state["run_after"] > a_minute_before for job_state in states)


class JobToMake(NamedTuple):
    """The values of a job to make: without a key it is queued, with a key it waits for a permit."""

    queue_name: str
    priority: int
    minutes_overdue: int
    key: str
    kind: str


# The kind and the capacity of the limit of each key.
LIMITS_BY_KEY = {"a": ("concurrency", 1), "b": ("concurrency", 3), "s": ("halting", 1), "f": ("fair", 1)}
jobs_to_make = st.builds(
    JobToMake,
    st.sampled_from([*QUEUES, "elsewhere"]),
    st.integers(-1, 1),
    st.integers(0, 3),
    st.sampled_from(["", *LIMITS_BY_KEY]),
    st.just(""),
)


@given(
    jobs=st.lists(jobs_to_make, max_size=20), limit=st.integers(1, 6), ended=st.sets(st.sampled_from([*LIMITS_BY_KEY]))
)
@settings(max_examples=60, deadline=None)
def test_the_exchange_claims_the_same_jobs_as_an_admission_followed_by_a_claim(
    jobs: list[JobToMake], limit: int, ended: set[str]
) -> None:
    """Hypothesis makes the jobs. CLAIM_OR_ADMIT must claim and admit the same jobs as an admission and then a claim."""
    Job.objects.all().delete()
    Queue.pause("paused")
    for waiting in jobs:
        key = waiting.key or None
        kind, capacity = LIMITS_BY_KEY.get(waiting.key, (None, None))
        make_job(
            "blocked" if key else "queued",
            queue_name=waiting.queue_name,
            priority=waiting.priority,
            run_after=timedelta(minutes=-waiting.minutes_overdue),
            limit_key=key,
            limit_kind=kind,
            capacity=capacity,
        )
    ended_ids = [
        make_keyed(key, "completed", kind=LIMITS_BY_KEY[key][0], capacity=LIMITS_BY_KEY[key][1]).pk
        for key in sorted(ended)
    ]
    values = claim_values(QUEUES, after={}, limit=limit, worker_id=OTHER_WORKER)
    admitted_then_claimed = result_of_statements(ended_ids, limits.ADMIT_BY_KEY, CLAIM, values)
    assert result_of_statements(ended_ids, limits.CHOOSE_BY_KEY, CLAIM_OR_ADMIT, values) == admitted_then_claimed


def result_of_statements(ended_ids: list[int], admit: str, claim: str, claim_values: Any) -> Any:
    """The claimed and admitted jobs, and the statuses of all jobs, in a transaction that is rolled back."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(LOCK_KEYS, {"ids": ended_ids, "keys": []})
        cursor.execute(admit)
        admitted = sorted((name, number) for name, number, *_ in cursor.fetchall())
        cursor.execute(claim, claim_values)
        claimed = in_claim_order((ClaimedJob._make((*row, 0.0)) for row in cursor.fetchall()), QUEUES)
        cursor.execute("SELECT id, status, lease, attempts, locked_by FROM skipqueue_job ORDER BY id")
        statuses = cursor.fetchall()
        cursor.execute("ROLLBACK")
    return admitted, [(job.id, job.lease, job.attempt) for job in claimed], statuses


def number_of_updates(cursor: Any) -> int:
    cursor.execute("SELECT pg_stat_force_next_flush()")
    cursor.execute("SELECT pg_stat_get_tuples_updated('skipqueue_job'::regclass)")
    ((number,),) = cursor.fetchall()
    return int(number)
