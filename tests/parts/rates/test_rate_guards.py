"""Conditions of the statements that admit jobs by rate: for each condition, a test that fails without it."""

from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue.models import Job, RateBucket
from django_skipqueue.parts.keyed import gate as keyed_gate
from django_skipqueue.parts.rates import admit as rate_admission
from django_skipqueue.parts.rates.admit import (
    LOCK_RATES,
    RateGate,
    admit_rate_keys,
    blocked_rates,
    due_rates,
    next_rate,
    prune_rates,
)
from django_skipqueue.queue.notify import GATES_PAYLOAD, keys_in
from django_skipqueue.queue.store import Store

from ...app.rates.jobs import burst_of_three
from ...app.rows import make_job
from ...app.sessions import connect
from ...harness.processes import statuses
from .test_rates import claim_ids, let_time_pass

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

FIELDS_OF_EARLIER_GATES: list[dict[str, Any]] = [
    {"held": True},
    {"limit_key": "l", "limit_kind": "concurrency", "capacity": 1},
]
"""The columns of blocked jobs that do not yet wait for a token, but for another job, or for a permit."""


def make_blocked(key: str = "k", *, interval: float = 3600.0, burst: int = 1, **values: Any) -> Job:
    return make_job("blocked", rate_key=key, rate_interval=interval, rate_burst=burst, **values)


def admit_and_count(*keys: str) -> int:
    """Admit jobs with these rate keys, and return how many have been admitted."""
    return sum(admit_rate_keys(store, keys).counts.values())


def insert_bucket(key: str, *, full: str, due: str | None = None) -> None:
    """Insert the bucket of a key. The times are intervals from now."""
    with connect() as session:
        session.execute(
            "INSERT INTO skipqueue_rate (key, full_at, due_at) VALUES (%s, now() + %s::interval, now() + %s::interval)",
            [key, full, due],
        )


@pytest.mark.parametrize("fields_of_earlier_gate", FIELDS_OF_EARLIER_GATES)
class TestAJobThatWaitsAtAnEarlierGate:
    def test_the_job_is_not_admitted_and_does_not_set_the_rate(self, fields_of_earlier_gate: dict[str, Any]) -> None:
        first = make_blocked(burst=5, priority=9, **fields_of_earlier_gate)
        for _ in range(3):
            make_blocked()
        assert admit_and_count("k") == 1
        assert Job.objects.get(pk=first.pk).status == "blocked"

    def test_the_job_does_not_make_its_key_due(self, fields_of_earlier_gate: dict[str, Any]) -> None:
        make_blocked(**fields_of_earlier_gate)
        assert admit_and_count("k") == 0
        assert not RateBucket.objects.exists()
        make_blocked()
        assert admit_and_count("k") == 1
        assert next_rate(store) is None

    def test_a_sweep_does_not_check_its_key(self, fields_of_earlier_gate: dict[str, Any]) -> None:
        make_blocked("a", **fields_of_earlier_gate)
        make_blocked("b")
        make_blocked("c", **fields_of_earlier_gate)
        assert blocked_rates(store) == {"b": True}

    def test_the_job_does_not_decide_whether_its_key_needs_a_check(
        self, fields_of_earlier_gate: dict[str, Any]
    ) -> None:
        """The clock was set back, so the key is due later than one interval of the next job."""
        make_blocked("k", interval=36_000.0, priority=9, **fields_of_earlier_gate)
        make_blocked("k", interval=60.0)
        insert_bucket("k", full="1 hour", due="1 hour")
        assert blocked_rates(store) == {"k": True}


def test_a_key_has_the_rate_of_the_job_that_starts_next() -> None:
    for _ in range(3):
        make_blocked(burst=3)
    make_blocked(burst=1, priority=9)
    assert admit_and_count("k") == 1


def test_a_locked_job_is_skipped_and_keeps_its_new_status() -> None:
    first, second = make_blocked(), make_blocked()
    with connect(autocommit=False) as other_session:
        other_session.execute(
            "UPDATE skipqueue_job SET status = 'discarded', gate = NULL, finished_at = now(), lease = lease + 1"
            " WHERE id = %s",
            [first.pk],
        )
        with transaction.atomic():
            with connection.cursor() as cursor:
                # an admission that waits for the lock fails after 5 s, instead of waiting until the test ends
                cursor.execute("SET LOCAL lock_timeout = '5s'")
            assert admit_and_count("k") == 1
        other_session.commit()
    assert dict(Job.objects.values_list("pk", "status")) == {first.pk: "discarded", second.pk: "queued"}


def test_an_admitted_job_has_no_gate_any_more() -> None:
    job = make_blocked(gate="rate", **FIELDS_OF_EARLIER_GATES[1])
    assert admit_and_count("k") == 1
    assert Job.objects.get(pk=job.pk).gate is None


class TestWhenAKeyIsDue:
    def test_a_key_is_due_with_the_next_token(self) -> None:
        for _ in range(4):
            make_blocked(interval=60.0, burst=3)
        assert admit_and_count("k") == 3
        assert 50 < (next_rate(store) or 0) <= 60

    def test_a_key_is_due_a_moment_later_if_a_token_is_there_and_the_job_is_locked(self) -> None:
        make_blocked(burst=4)
        locked = make_blocked(burst=4)
        with connect(autocommit=False) as other_session:
            other_session.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [locked.pk])
            assert admit_and_count("k") == 1
            bucket = RateBucket.objects.get()
        assert bucket.due_at is not None
        assert bucket.due_at < bucket.full_at
        # the key is due in 0.05 s; its one missing token comes in an hour
        assert (bucket.due_at - bucket.full_at).total_seconds() == pytest.approx(0.05 - 3600)

    def test_a_key_is_due_half_a_second_later_if_a_burst_is_queued(self) -> None:
        for _ in range(9):
            make_blocked(interval=0.25, burst=8)
        assert admit_and_count("k") == 8
        bucket = RateBucket.objects.get()
        assert bucket.due_at is not None
        # the key is due in 0.5 s; the eight missing tokens take 8 * 0.25 s
        assert (bucket.full_at - bucket.due_at).total_seconds() == pytest.approx(8 * 0.25 - 0.5)

    def test_a_key_is_due_several_times_in_the_time_of_a_burst(self) -> None:
        for _ in range(3):
            make_blocked(interval=0.02, burst=2)
        assert admit_and_count("k") == 2
        bucket = RateBucket.objects.get()
        assert bucket.due_at is not None
        # the key is due with the first of the two missing tokens, and full with the second, 0.02 s later
        assert (bucket.full_at - bucket.due_at).total_seconds() == pytest.approx(0.02)

    def test_an_admission_leaves_the_row_of_another_key_alone(self) -> None:
        for key in "aabb":
            make_blocked(key)
        assert admit_and_count("a", "b") == 2
        Job.objects.filter(rate_key="a", status="blocked").delete()
        assert admit_and_count("a") == 0
        assert list(RateBucket.objects.exclude(due_at=None).values_list("key", flat=True)) == ["b"]

    def test_a_rate_key_with_waiting_jobs_keeps_its_next_check(self) -> None:
        for _ in range(2):
            make_blocked()
        assert admit_and_count("k") == 1
        for _ in range(2):
            assert admit_and_count("k") == 0
            assert (next_rate(store) or 0) > 0


def test_the_key_that_is_due_first_is_read_first() -> None:
    insert_bucket("a", full="0", due="-1 second")
    insert_bucket("b", full="0", due="-2 seconds")
    insert_bucket("c", full="0", due="1 hour")
    assert due_rates(store) == ["b", "a"]
    assert due_rates(store, limit=1) == ["b"]


def test_a_key_that_is_due_soon_is_not_admitted_by_the_sweep() -> None:
    make_blocked(interval=0.001)
    insert_bucket("k", full="0", due="0.9 seconds")
    assert blocked_rates(store) == {"k": False}


def test_full_buckets_without_waiting_jobs_are_pruned() -> None:
    insert_bucket("due", full="-2 minutes", due="-1 minute")
    insert_bucket("just full", full="-30 seconds")
    insert_bucket("locked", full="-2 minutes")
    insert_bucket("old", full="-2 minutes")
    with connect(autocommit=False) as other_session:
        other_session.execute("SELECT FROM skipqueue_rate WHERE key = 'locked' FOR UPDATE")
        assert prune_rates(store) == 1
    assert set(RateBucket.objects.values_list("key", flat=True)) == {"due", "just full", "locked"}


def test_more_keys_than_fit_into_one_transaction_are_all_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_gate, "KEYS_AT_ONCE", 2)
    burst_of_three.defer_many([(number,) for number in range(5)])
    assert statuses() == {"queued": 5}


def test_locked_keys_are_announced_by_name_as_far_as_the_payload_holds() -> None:
    keys = [f"{number:04}" * 50 for number in range(100)]
    with connect(autocommit=False) as other_session, connect() as listening:
        listening.execute("LISTEN skipqueue_supervisors")
        other_session.execute(LOCK_RATES, {"keys": keys})
        RateGate().admit_keys(store, keys)
        payload_of_keys, payload_of_gates = [
            notification.payload for notification in listening.notifies(timeout=5, stop_after=2)
        ]
    assert payload_of_gates == GATES_PAYLOAD
    assert 7_700 < len(payload_of_keys) < 8_000
    assert keys_in([payload_of_gates, payload_of_keys], "rate") < set(keys)
    assert len(keys_in([payload_of_keys], "rate")) == 39, "a payload has at most 8,000 bytes, and a key has 200"


@pytest.mark.parametrize("admits_nothing", [True, False])
def test_a_process_waits_a_while_after_an_admission(monkeypatch: pytest.MonkeyPatch, *, admits_nothing: bool) -> None:
    monkeypatch.setattr(rate_admission, "VAIN_INTERVAL" if admits_nothing else "LEAST_INTERVAL", 60.0)
    gate = RateGate()
    if not admits_nothing:
        make_blocked()
    gate.want("default", ["k"])
    assert gate.admit(store, limit=9).by_queue == ({} if admits_nothing else {"default": 1})
    claim_ids()
    let_time_pass(36_000)
    make_blocked()
    gate.want("default", ["k"])
    assert gate.admit(store, limit=9).by_queue == {}
    assert (gate.next_due(store) or 0) > 50
