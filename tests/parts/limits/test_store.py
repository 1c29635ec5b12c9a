"""Admission by key: which jobs are admitted, when, and in which order."""

from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue import by, job, limit
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.parts.keyed import gate as keyed_gate
from django_skipqueue.parts.limits import admit as limits
from django_skipqueue.parts.limits.admit import blocked_keys
from django_skipqueue.parts.limits.sql import LOCK_KEYS
from django_skipqueue.queue import gates
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.parameters import Admitted
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Admit
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement

from ...app import jobs
from ...app.limit_rows import exchange
from ...app.limits.jobs import (
    continuing_sequence,
    halting_sequence,
    one_at_a_time,
    same_shared_limit,
    shared_limit,
    two_per_account,
)
from ...app.rows import make_job
from ...app.sessions import Session, connect
from ...app.waiting import wait_until
from ...harness.processes import statuses

store = Store("default")
FAILED = Outcome("failed", last_error="no", error={"message": "no"})
RETRY = Outcome("scheduled", delay=60.0, last_error="no", error={"message": "no"})
SNOOZE = Outcome("scheduled", delay=60.0, refund=1)

ADVISORY_LOCKS = """
SELECT count(*)
FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE locktype = 'advisory' AND datname = current_database()
"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> Iterator[Session]:
    """A database session beside that of the test."""
    other_session = Session()
    yield other_session
    other_session.close()


def claim_ids(limit: int = 100) -> list[int]:
    """The ids of the jobs that a worker claims."""
    return [job.id for job in store.claim(queue_names=["default"], limit=limit, worker_id="w")]


def claim_one(worker_id: str) -> tuple[int, int]:
    """The id and the lease of the one job that this worker claims."""
    (job,) = store.claim(queue_names=["default"], limit=100, worker_id=worker_id)
    return job.id, job.lease


def settle_and_claim(*ids: int, outcome: Outcome = COMPLETED) -> list[int]:
    """Settle these running jobs and claim jobs, as a worker does. Returns the ids of the claimed jobs."""
    leases = dict(Job.objects.filter(pk__in=ids).values_list("pk", "lease"))
    settlements = [Settlement(id, leases[id], outcome) for id in ids]
    result, _ = exchange(store, settlements, queue_names=["default"], limit=100, limited=ids)
    return [job.id for job in result.claimed()]


def test_a_job_beyond_the_limit_is_blocked_until_a_job_ends() -> None:
    first, second, third, fourth = two_per_account.defer_many([("a",)] * 4)
    other_account = two_per_account.defer("b")
    assert statuses() == {"queued": 3, "blocked": 2}
    assert claim_ids() == [first, second, other_account.pk]
    assert settle_and_claim(second) == [third]
    assert settle_and_claim(first, third) == [fourth]
    assert settle_and_claim(fourth, other_account.pk) == []
    assert statuses() == {"completed": 5}


def test_a_single_job_is_queued_at_once() -> None:
    job = two_per_account.defer("a")
    assert Job.objects.get(pk=job.pk).status == "queued"


def test_a_job_is_admitted_after_the_commit_and_not_within_the_transaction() -> None:
    """An admission within the transaction would keep the key locked until the caller commits."""
    with transaction.atomic():
        first = two_per_account.defer("a")
        two_per_account.defer_many([("a",)] * 2)
        assert statuses() == {"blocked": 3}
        with connect() as other_session:
            assert other_session.execute(ADVISORY_LOCKS).fetchone() == (0,)
    assert statuses() == {"queued": 2, "blocked": 1}
    assert first.pk in claim_ids()


def test_two_transactions_that_defer_the_same_keys_in_opposite_order_do_not_wait(session: Session) -> None:
    session.begin()
    session(two_per_account.defer, "a")
    with transaction.atomic():
        two_per_account.defer("b")
        session(two_per_account.defer, "b")
        two_per_account.defer("a")
    session.commit()
    assert statuses() == {"queued": 4}


def test_a_rolled_back_enqueue_leaves_no_job() -> None:
    with transaction.atomic():
        two_per_account.defer("a")
        transaction.set_rollback(True)
    assert statuses() == {}


def test_the_blocked_job_of_highest_priority_and_then_the_oldest_is_admitted() -> None:
    running = two_per_account.defer_many([("a",)] * 2)
    claim_ids()
    low, high, late = (
        two_per_account.using(priority=-5).defer("a").pk,
        two_per_account.using(priority=5).defer("a").pk,
        two_per_account.using(priority=5).defer("a").pk,
    )
    assert settle_and_claim(*running) == [high, late]
    assert settle_and_claim(high) == [low]


def test_limits_with_one_name_are_shared_and_limits_without_a_name_are_not() -> None:
    shared_limit.defer("a")
    same_shared_limit.defer("a")
    same_shared_limit.defer("b")
    one_at_a_time.defer()
    assert statuses() == {"queued": 3, "blocked": 1}


def test_a_sequence_runs_in_the_order_of_its_enqueues_whatever_the_priority() -> None:
    first, second = halting_sequence.defer("a").pk, halting_sequence.defer("a").pk
    third = halting_sequence.using(priority=100).defer("a").pk
    assert claim_ids() == [first]
    assert settle_and_claim(first) == [second]
    assert settle_and_claim(second) == [third]


def test_a_job_that_waits_for_its_retry_holds_its_sequence_and_not_a_limit() -> None:
    sequence, limited = halting_sequence.defer_many([("a",)] * 2), two_per_account.defer_many([("a",)] * 3)
    assert claim_ids() == [sequence[0], *limited[:2]]
    assert settle_and_claim(sequence[0], outcome=RETRY) == []
    assert settle_and_claim(limited[0], outcome=RETRY) == [limited[2]]
    assert statuses() == {"scheduled": 2, "running": 2, "blocked": 1}
    Job.objects.scheduled().run_now()
    sweep_gates(store)
    assert claim_ids() == [sequence[0]]


def test_a_retry_comes_before_a_job_that_was_enqueued_earlier_and_is_due_only_now() -> None:
    early = halting_sequence.using(run_after=timedelta(hours=1)).defer("a").pk
    first = halting_sequence.defer("a").pk
    assert claim_ids() == [first]
    assert settle_and_claim(first, outcome=RETRY) == []
    Job.objects.scheduled().run_now()
    sweep_gates(store)
    assert claim_ids() == [first]
    assert settle_and_claim(first) == [early]


def test_a_job_that_was_discarded_before_it_began_keeps_its_place_when_it_is_retried() -> None:
    ids = halting_sequence.defer_many([("a",)] * 5)
    never_begun = Job.objects.filter(pk=ids[4])
    never_begun.discard()
    never_begun.retry()
    ran_ids, next_ids = [], claim_ids()
    while next_ids:
        ran_ids += next_ids
        next_ids = settle_and_claim(*next_ids)
    assert ran_ids == list(ids)


@pytest.mark.parametrize("verb", ["postpone", "reschedule"])
def test_a_job_given_back_before_it_began_does_not_hold_its_sequence(verb: str) -> None:
    first, second = halting_sequence.defer_many([("a",)] * 2)
    [claimed] = store.claim(queue_names=["default"], limit=100, worker_id="w")
    store.release([claimed.ref])
    getattr(Job.objects.filter(pk=first), verb)(timedelta(hours=1))
    assert sweep_gates(store)
    assert claim_ids() == [second]


@pytest.mark.parametrize("outcome", [RETRY, SNOOZE, FAILED])
def test_a_job_that_has_begun_holds_its_sequence_whatever_an_operator_does(outcome: Outcome) -> None:
    """The job was retried or snoozed (and released after another claim), or it failed and was retried by hand."""
    first, _ = halting_sequence.defer_many([("a",)] * 2)
    first_job = Job.objects.filter(pk=first)
    claim_ids()
    assert settle_and_claim(first, outcome=outcome) == []
    first_job.retry() if outcome is FAILED else first_job.run_now()
    sweep_gates(store)
    if outcome is RETRY:
        [claimed] = store.claim(queue_names=["default"], limit=100, worker_id="w")
        store.release([claimed.ref])
    first_job.postpone(timedelta(hours=1))
    assert not sweep_gates(store)
    assert claim_ids() == []


def test_a_future_job_does_not_block_jobs_that_are_due_before_it() -> None:
    halting_sequence.using(run_after=timedelta(hours=1)).defer("a")
    second = halting_sequence.defer("a").pk
    assert claim_ids() == [second]


def test_a_future_job_is_admitted_when_it_is_due() -> None:
    current_job = halting_sequence.defer("a").pk
    future_job = halting_sequence.using(run_after=timedelta(milliseconds=1)).defer("a").pk
    wait_until(lambda: store.admit() is not None and Job.objects.get(pk=future_job).status == "blocked")
    assert claim_ids() == [current_job]
    assert settle_and_claim(current_job) == [future_job]
    other_key = halting_sequence.using(run_after=timedelta(milliseconds=1)).defer("b").pk
    wait_until(lambda: store.admit() is not None and Job.objects.get(pk=other_key).status == "queued")


def test_a_halting_sequence_waits_for_the_operator_after_a_failure() -> None:
    first, second, third = halting_sequence.defer_many([("a",)] * 3)
    claim_ids()
    assert settle_and_claim(first, outcome=FAILED) == []
    assert not sweep_gates(store)
    Job.objects.filter(pk=first).retry()
    sweep_gates(store)
    assert claim_ids() == [first]
    assert settle_and_claim(first) == [second]
    assert settle_and_claim(second, outcome=FAILED) == []
    Job.objects.filter(pk=second).discard()
    sweep_gates(store)
    assert claim_ids() == [third]
    assert Job.objects.get(pk=second).status == "discarded"


def test_a_deleted_failed_job_halts_no_sequence() -> None:
    first, second = halting_sequence.defer_many([("a",)] * 2)
    claim_ids()
    assert settle_and_claim(first, outcome=FAILED) == []
    Job.objects.filter(pk=first).delete()
    assert sweep_gates(store)
    assert claim_ids() == [second]


def test_a_sequence_that_continues_goes_on_after_a_failure() -> None:
    first, second = continuing_sequence.defer_many([("a",)] * 2)
    claim_ids()
    assert settle_and_claim(first, outcome=FAILED) == [second]


def test_a_spread_retry_rejoins_its_sequence_without_blocking_it() -> None:
    first, second, third, fourth = continuing_sequence.defer_many([("a",)] * 4)
    claim_ids()
    assert settle_and_claim(first, outcome=FAILED) == [second]
    assert settle_and_claim(second, outcome=FAILED) == [third]
    retried = Job.objects.filter(pk__in=[first, second])
    assert retried.retry(over=3600) == 2
    assert retried.values("run_after").distinct().count() == 1
    assert settle_and_claim(third) == [fourth]
    assert settle_and_claim(fourth) == []
    fifth = continuing_sequence.defer("a").pk
    assert claim_ids() == [fifth]
    Job.objects.scheduled().run_now()
    sweep_gates(store)
    assert settle_and_claim(fifth) == [first]
    assert settle_and_claim(first) == [second]


def test_a_halted_sequence_waits_for_a_spread_retry() -> None:
    first, second = halting_sequence.defer_many([("a",)] * 2)
    claim_ids()
    assert settle_and_claim(first, outcome=FAILED) == []
    Job.objects.filter(pk=first).retry(over=3600)
    assert not sweep_gates(store)
    Job.objects.scheduled().run_now()
    sweep_gates(store)
    assert claim_ids() == [first]
    assert settle_and_claim(first) == [second]


@pytest.mark.parametrize("verb", ["cancel", "discard", "delete", "postpone"])
def test_the_sweep_admits_the_next_job_after_an_operator_removed_the_first(verb: str) -> None:
    first, second = halting_sequence.defer_many([("a",)] * 2)
    first_job = Job.objects.filter(pk=first)
    first_job.postpone(timedelta(hours=1)) if verb == "postpone" else getattr(first_job, verb)()
    assert sweep_gates(store)
    assert claim_ids() == [second]


def test_a_released_or_recovered_job_keeps_its_permit() -> None:
    first, _ = halting_sequence.defer_many([("a",)] * 2)
    [claimed] = store.claim(queue_names=["default"], limit=100, worker_id="w")
    store.release([claimed.ref])
    assert not sweep_gates(store)
    assert claim_ids() == [first]
    store.recover(worker_ids=["w"])
    assert not sweep_gates(store)
    assert claim_ids() == [first]


def test_a_job_that_is_retried_by_hand_waits_for_a_permit_again() -> None:
    first, second, third = two_per_account.defer_many([("a",)] * 3)
    claim_ids()
    assert settle_and_claim(first) == [third]
    Job.objects.filter(pk=first).retry()
    Job.objects.filter(pk=second).discard()
    failed = make_job("failed", limit_key=Job.objects.get(pk=first).limit_key, limit_kind="concurrency", capacity=2)
    failed.retry()
    sweep_gates(store)
    assert statuses() == {"running": 2, "blocked": 1, "completed": 1} or statuses() == {"running": 2, "blocked": 1}


def test_a_job_with_a_lower_capacity_waits_for_the_running_jobs() -> None:
    two_per_account.defer_many([("a",)] * 2)
    key = Job.objects.values_list("limit_key", flat=True)[0]
    Job.objects.create(
        task="t",
        queue_name="default",
        status="blocked",
        gate="limit",
        limit_key=key,
        limit_kind="concurrency",
        capacity=1,
    )
    assert not sweep_gates(store)
    assert key
    assert limits.admit_keys(store, [key]).counts == {}
    running_ids = claim_ids()
    assert settle_and_claim(running_ids[0]) == []  # one job still runs, and the capacity is one
    assert len(settle_and_claim(running_ids[1])) == 1


@pytest.mark.parametrize("kind", ["concurrency", "sequence"])
def test_a_job_that_waits_for_other_jobs_does_not_delay_the_jobs_of_its_key(kind: str) -> None:
    held = make_job("blocked", limit_key="k", limit_kind=kind, capacity=1, held=True)
    assert blocked_keys(store) == {}
    assert limits.admit_keys(store, ["k"]).counts == {}
    unheld = make_job("blocked", limit_key="k", limit_kind=kind, capacity=1)
    assert blocked_keys(store) == {"k": True}
    assert limits.admit_keys(store, ["k"]).counts == {"default": 1}
    assert claim_ids() == [unheld.pk]
    assert Job.objects.get(pk=held.pk).status == "blocked"


def test_retried_jobs_of_a_sequence_run_in_order() -> None:
    limit_columns: dict[str, Any] = {"limit_key": "k", "limit_kind": "halting", "capacity": 1}
    never_begun = make_job("blocked", **limit_columns).pk
    begun = [make_job("failed", started_at=timedelta(0), **limit_columns).pk for _ in range(5)]
    assert len(store.retry(begun)) == 5
    sweep_gates(store)
    next_ids, ran_ids = claim_ids(), []
    while next_ids:
        assert len(next_ids) == 1
        ran_ids += next_ids
        next_ids = settle_and_claim(*next_ids)
    assert ran_ids == [*begun, never_begun]


# Keys that other sessions have locked


def lock_keys(cursor: Any, *keys: str | None) -> None:
    cursor.execute(LOCK_KEYS, {"ids": "{}", "keys": list(keys)})


def test_a_key_that_another_session_has_locked_is_reported_without_waiting() -> None:
    """`exchange` settles jobs, admits the next jobs of their keys, and claims. `missed` lists the locked keys."""
    first, second = halting_sequence.defer_many([("a",)] * 2)
    key = Job.objects.get(pk=first).limit_key
    claim_ids()
    with connect(autocommit=False) as other_session:
        lock_keys(other_session, key)
        lease = Job.objects.get(pk=first).lease
        result, admitted = exchange(
            store, [Settlement(first, lease, COMPLETED)], queue_names=["default"], limit=9, limited=[first]
        )
        assert admitted.missed == [key]
        assert result.settled() == {(first, lease): None}
        assert not result.claimed()
    next_result, admitted = exchange(store, [], queue_names=["default"], limit=9, keys=admitted.missed)
    assert admitted.missed == []
    assert [job.id for job in next_result.claimed()] == [second]


def test_a_late_outcome_of_an_ended_job_does_not_admit_a_second_successor() -> None:
    first, second, third = halting_sequence.defer_many([("a",)] * 3)
    late_settlement = Settlement(*claim_one("w"), COMPLETED)
    assert late_settlement.job_id == first
    store.release([(late_settlement.job_id, late_settlement.lease)])
    claim_one("v")
    assert settle_and_claim(first) == [second]
    result, _ = exchange(store, [late_settlement], queue_names=["default"], limit=9, limited=[first])
    assert not result.claimed()
    assert [Job.objects.get(pk=id).status for id in (first, second, third)] == ["completed", "running", "blocked"]


def test_permits_are_counted_by_a_statement_after_the_lock() -> None:
    """A single statement that locks and counts would not see what the lock's previous holder has just committed."""
    assert "pg_try_advisory_xact_lock" not in limits.ADMIT_BY_KEY
    assert "skipqueue_job" in limits.ADMIT_BY_KEY


@pytest.fixture
def next_supervisor_payloads() -> Iterator[Any]:
    """A function that returns the next payloads of the notifications to supervisors."""
    with connect() as listener:
        listener.execute("LISTEN skipqueue_supervisors")
        yield lambda: [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)]


def test_an_enqueue_whose_key_is_locked_notifies_the_supervisors(next_supervisor_payloads: Any) -> None:
    key = halting_sequence.encoded(("a",), {}).columns["limit_key"]
    with connect(autocommit=False) as other_session:
        lock_keys(other_session, key)
        halting_sequence.defer("a")
        assert next_supervisor_payloads() == [f",limit {key}"]
    assert statuses() == {"blocked": 1}


def test_an_admission_tries_a_key_that_is_locked_for_a_moment_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_keys = limits.admit_keys
    with connect(autocommit=False) as other_session:

        def admit_then_unlock(store: Store, keys: Collection[str]) -> Admitted:
            admitted = admit_keys(store, keys)
            other_session.rollback()
            return admitted

        monkeypatch.setattr(limits, "admit_keys", admit_then_unlock)
        lock_keys(other_session, halting_sequence.encoded(("a",), {}).columns["limit_key"])
        halting_sequence.defer("a")
    assert statuses() == {"queued": 1}


@pytest.fixture
def unused_gate(monkeypatch: pytest.MonkeyPatch) -> limits.LimitGate:
    """A gate that no other test has used: the pace of its sweeps depends on earlier sweeps."""
    gate = limits.LimitGate()
    monkeypatch.setattr(gates, "gates", lambda: [gate])
    return gate


# Each of 1,200 keys has a limit of one job, a running job and a blocked job.
JOBS_OF_MANY_KEYS = """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, gate, locked_at, limit_key, limit_kind, capacity)
SELECT
    'default', 'a.task', '[]', '{}', status, CASE WHEN status = 'blocked' THEN 'limit' END,
    CASE WHEN status = 'running' THEN now() END, 'k' || number, 'concurrency', 1
FROM generate_series(1, 1200) AS number, unnest(ARRAY['running', 'blocked']) AS status
"""


@pytest.mark.usefixtures("unused_gate")
def test_a_key_that_was_locked_is_admitted_at_once_beside_many_keys(next_supervisor_payloads: Any) -> None:
    """A sweep reads a thousand keys, in alphabetical order, and then rests."""
    service = Admit(store)
    with connect(autocommit=False) as other_session:
        other_session.execute(JOBS_OF_MANY_KEYS)
        other_session.commit()
        lock_keys(other_session, halting_sequence.encoded(("a",), {}).columns["limit_key"])
        waiting = halting_sequence.defer("a")
        service.notified(next_supervisor_payloads())
    service.run(0.0)
    waiting.refresh_from_db()
    assert waiting.status == "queued"


def test_a_key_that_stays_locked_is_tried_again_after_growing_pauses(unused_gate: limits.LimitGate) -> None:
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    with connect(autocommit=False) as other_session:
        lock_keys(other_session, "k")
        unused_gate.want("default", ["k"])
        pauses = []
        for _ in range(3):
            wait_until(lambda: (unused_gate.next_due(store) or 0.0) <= 0)
            assert unused_gate.admit(store, limit=9).by_queue == {}
            pauses.append(unused_gate.next_due(store) or 0.0)
        assert 0 < pauses[0] < pauses[1] < pauses[2] <= keyed_gate.SWEEP_INTERVAL
    assert wait_until(lambda: unused_gate.admit(store, limit=9).by_queue) == {"default": 1}


def test_more_notified_keys_than_fit_are_found_by_a_sweep_of_all_keys(
    unused_gate: limits.LimitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    monkeypatch.setattr(keyed_gate, "KEYS_AT_ONCE", 2)
    unused_gate.want("default", ["a", "b", "c"])
    assert unused_gate.admit(store, limit=9).by_queue == {"default": 1}


def test_an_enqueue_whose_admission_fails_notifies_the_supervisors(
    next_supervisor_payloads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMIT_BY_KEY", "SELECT 1 / 0")
    halting_sequence.defer_many([("a",)] * 2)
    assert next_supervisor_payloads() == [",gates"]
    assert statuses() == {"blocked": 2}


def test_an_enqueue_without_autocommit_notifies_the_supervisors(next_supervisor_payloads: Any) -> None:
    transaction.set_autocommit(False)
    try:
        halting_sequence.defer("a")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert next_supervisor_payloads() == [f",limit {halting_sequence.encoded(('a',), {}).columns.get('limit_key')}"]
    assert sweep_gates(store)


def test_a_retry_by_hand_notifies_the_supervisors(next_supervisor_payloads: Any) -> None:
    make_job("failed", limit_key="k", limit_kind="halting", capacity=1).retry()
    assert next_supervisor_payloads() == [",gates"]


def test_jobs_are_admitted_even_if_they_have_too_many_keys_for_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_gate, "KEYS_AT_ONCE", 2)
    halting_sequence.defer_many([(f"k{number}",) for number in range(5)])
    assert statuses() == {"queued": 5}


def test_keys_outside_of_a_rolled_back_savepoint_are_admitted() -> None:
    with transaction.atomic():
        halting_sequence.defer("a")
        with transaction.atomic():
            halting_sequence.defer("b")
            transaction.set_rollback(True)
        halting_sequence.defer("c")
    assert statuses() == {"queued": 2}


def test_no_job_is_admitted_at_isolation_level_repeatable_read() -> None:
    """At this level, permits would be counted in an old snapshot, that of the transaction's first statement."""
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert limits.admit_keys(store, ["k"]) == Admitted(counts={}, missed=["k"])
    assert limits.admit_keys(store, ["k"]) == Admitted(counts={"default": 1}, missed=[])


def test_only_an_admission_in_a_transaction_of_its_own_commits_asynchronously() -> None:
    """The commit of the caller's own transaction waits for the disk."""
    read_commit_setting = "SELECT current_setting('synchronous_commit')"
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    with transaction.atomic(), connection.cursor() as cursor:
        assert limits.admit_keys(store, ["k"]) == Admitted(counts={"default": 1}, missed=[])
        cursor.execute(read_commit_setting)
        assert cursor.fetchone() == ("on",)
    limits.admit_keys(store, ["k"])
    with connection.cursor() as cursor:
        cursor.execute(read_commit_setting)
        assert cursor.fetchone() == ("on",)


def test_an_admitted_job_of_another_queue_is_announced() -> None:
    """This worker serves only one queue, so it must announce the job, however many jobs it has claimed."""
    first, second = halting_sequence.defer("a").pk, halting_sequence.using(queue_name="other").defer("a").pk
    assert claim_ids() == [first]
    unlimited = jobs.noop.defer().pk
    lease = Job.objects.get(pk=first).lease
    with connect() as listener:
        listener.execute("LISTEN skipqueue")
        result, _ = exchange(
            store, [Settlement(first, lease, COMPLETED)], queue_names=["default"], limit=9, limited=[first]
        )
        assert [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)] == ["other"]
    assert [job.id for job in result.claimed()] == [unlimited]
    assert Job.objects.get(pk=second).status == "queued"


def test_a_limit_skips_a_locked_job_but_a_sequence_waits_for_it() -> None:
    keys = {"concurrency": "limit", "sequence": "seq", "halting": "halt"}
    jobs_by_kind = {
        kind: [make_job("blocked", limit_key=key, limit_kind=kind, capacity=1) for _ in range(2)]
        for kind, key in keys.items()
    }
    with connect(autocommit=False) as other_session:
        first_ids = [first.pk for first, _ in jobs_by_kind.values()]
        other_session.execute("SELECT FROM skipqueue_job WHERE id = ANY (%s) FOR UPDATE", [first_ids])
        sweep_gates(store)
        assert claim_ids() == [jobs_by_kind["concurrency"][1].pk], "the limit admits the job after the locked job"
    sweep_gates(store)
    assert claim_ids() == [jobs_by_kind["sequence"][0].pk, jobs_by_kind["halting"][0].pk]


# Sweeps: a supervisor looks for free permits of all keys with blocked jobs


def test_a_sweep_of_keys_goes_on_where_the_last_sweep_ended() -> None:
    for number in range(5):
        make_job("blocked", limit_key=f"k{number}", limit_kind="concurrency", capacity=1)
    sweep = keyed_gate.Sweep(limits.blocked_keys)
    assert [len(sweep.run(store, lambda _, keys: keys, limit=2)) for _ in range(3)] == [2, 2, 1]
    assert sweep.after == ""


def test_notified_sweeps_reach_the_last_key() -> None:
    """If each sweep began with the first key, it would stop at locked keys and never reach the keys after them."""
    for number in range(6):
        key = f"k{number}"
        # only the last key has a free permit
        make_job("running" if number < 5 else "completed", limit_key=key, limit_kind="concurrency", capacity=1)
        make_job("blocked", limit_key=key, limit_kind="concurrency", capacity=1)
    gate = limits.LimitGate()

    def admitted_after_a_notification() -> Any:
        gate.sweep_now("default")
        return gate.admit(store, limit=2).by_queue

    assert wait_until(admitted_after_a_notification) == {"default": 1}


def test_notifications_do_not_make_a_process_sweep_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job("running", limit_key="k", limit_kind="concurrency", capacity=1)
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    # a process may spend a millionth of its time on sweeps
    monkeypatch.setattr(limits, "NOTIFIED_SHARE", 1e-6)
    monkeypatch.setattr(keyed_gate, "SWEEP_SHARE", 1e-6)
    gate = limits.LimitGate()
    gate.admit(store, limit=9)
    gate.sweep_now("default")
    assert (gate.next_due(store) or 0.0) > 60.0


def test_no_sweep_is_due_while_no_job_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = limits.LimitGate()
    monkeypatch.setattr(gates, "gates", lambda: [gate])
    assert store.next_due() is None
    make_job("blocked", limit_key="k", limit_kind="concurrency", capacity=1)
    assert store.next_due() == 0.0
    assert store.admit().by_queue == {"default": 1}
    assert (store.next_due() or 0.0) > 0.0


# Options of tasks


def test_limits_with_invalid_values_are_refused() -> None:
    for make_invalid in (
        lambda: limit(0),
        lambda: limit(True),
        lambda: limit(10_001),
        lambda: limit(2, by=3),  # type: ignore[arg-type]
        lambda: limit(2, name=""),
        lambda: by("a", on_failure="wait"),  # type: ignore[arg-type]
        lambda: by(4),  # type: ignore[arg-type]
        lambda: job(concurrency=2),  # type: ignore[call-overload]
        lambda: job(sequence="order_id"),  # type: ignore[call-overload]
        lambda: job(concurrency=limit(2), sequence=by("a")),
    ):
        with pytest.raises(InvalidOption):
            make_invalid()


def test_the_option_by_of_a_limit_must_name_an_argument_of_the_task() -> None:
    def send(order_id: int) -> None: ...

    send.__module__, send.__qualname__ = "tests.parts.limits.test_store", "send"
    with pytest.raises(InvalidOption, match="by names the argument 'order', and the task has order_id"):
        job(concurrency=limit(2, by="order"))(send)


def test_a_limit_key_has_the_values_of_the_arguments_and_hashes_long_values() -> None:
    assert (
        two_per_account.encoded(("x",), {}).columns["limit_key"]
        == 'limit:tests.app.limits.jobs.two_per_account account="x"'
    )
    assert two_per_account.encoded((), {"account": "x"}).columns["limit_key"] == two_per_account.encoded(
        ("x",), {}
    ).columns.get("limit_key")
    long_key = two_per_account.encoded(("x" * 5_000,), {}).columns["limit_key"]
    assert long_key
    assert len(long_key) < 200
    assert long_key != two_per_account.encoded(("x" * 5_001,), {}).columns["limit_key"]
    assert one_at_a_time.encoded((), {}).columns["limit_key"] == "limit:tests.app.limits.jobs.one_at_a_time"


def test_a_limit_key_has_the_hash_of_a_secret_argument() -> None:
    def call(token: str, account: dict[str, str]) -> None: ...

    call.__module__, call.__qualname__ = "tests.parts.limits.test_store", "call"
    task = job(sequence=by("token", "account"))(call)
    key, same_key, other_key = (
        task.encoded((token, {"name": "a", "password": "geheim"}), {}).columns["limit_key"] or ""
        for token in ("tok", "tok", "uvw")
    )
    assert key == same_key != other_key
    assert "tok" not in key.replace("token", "")
    assert "geheim" not in key
    assert 'token="hmac:' in key


def test_a_job_without_a_limit_has_no_limit_key() -> None:
    job = jobs.noop.defer()
    job.refresh_from_db()
    assert (job.limit_key, job.limit_kind, job.capacity) == (None, None, None)
