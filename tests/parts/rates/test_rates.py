"""Admission by rate: which jobs take a token, when, and in which order."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue.models import Job, RateBucket
from django_skipqueue.parts.batches.dependencies import admit_dependants
from django_skipqueue.parts.keyed import gate as keyed_gate
from django_skipqueue.parts.limits.admit import LimitGate, admit_keys
from django_skipqueue.parts.limits.sql import LOCK_KEYS
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
from django_skipqueue.queue import gates
from django_skipqueue.queue.gates import TIME_GATE, sweep_gates
from django_skipqueue.queue.notify import GATES_PAYLOAD, SCHEDULED_PAYLOAD
from django_skipqueue.queue.parameters import Admitted
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Admit
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement

from ...app import jobs
from ...app.limits.jobs import two_per_account
from ...app.limits.rates.jobs import hundred_a_minute_of_two, rated_and_limited, rated_in_order
from ...app.rates.jobs import burst_of_three, hundred_a_minute, shares_rate, shares_rate_too
from ...app.rows import make_job
from ...app.sessions import connect
from ...app.waiting import wait_until
from ...harness.processes import statuses

store = Store("default")
RETRY_NOW = Outcome("scheduled", delay=0.0, last_error="no", error={"message": "no"})

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def unused_gate(monkeypatch: pytest.MonkeyPatch) -> RateGate:
    """A gate that no other test has used: its pace depends on earlier admissions."""
    gate = RateGate()
    other_gates = gates.gates()[:-1]
    monkeypatch.setattr(gates, "gates", lambda: [*other_gates, gate])
    return gate


def rate_key_of(task: Any, *args: Any) -> str:
    key = task.encoded(args, {}).columns["rate_key"]
    assert key
    return str(key)


def let_time_pass(seconds: float) -> None:
    """Change every bucket as if these seconds had passed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE skipqueue_rate SET full_at = full_at - make_interval(secs => %(seconds)s), "
            "due_at = due_at - make_interval(secs => %(seconds)s)",
            {"seconds": seconds},
        )


def claim_ids(limit: int = 100) -> list[int]:
    """The ids of the jobs that a worker claims."""
    return [job.id for job in store.claim(queue_names=["default"], limit=limit, worker_id="w")]


def settle(*ids: int, outcome: Outcome = COMPLETED) -> None:
    leases = dict(Job.objects.filter(pk__in=ids).values_list("pk", "lease"))
    store.settle([Settlement(id, leases[id], outcome) for id in ids])


def admit_and_count(*keys: str) -> int:
    """Admit jobs with these rate keys, and return how many have been admitted."""
    return sum(admit_rate_keys(store, keys).counts.values())


def test_a_job_beyond_the_burst_waits_for_a_token() -> None:
    ids = burst_of_three.defer_many([(7,)] * 5)
    other_key = burst_of_three.defer(8)
    assert statuses() == {"queued": 4, "blocked": 2}
    assert claim_ids() == [*ids[:3], other_key.pk]
    key = rate_key_of(burst_of_three, 7)
    assert admit_and_count(key) == 0
    let_time_pass(3600)
    assert admit_and_count(key) == 1
    assert admit_and_count(key) == 0
    let_time_pass(3600)
    assert admit_and_count(key) == 1
    assert claim_ids() == ids[3:]


def test_the_first_job_is_queued_at_once_and_the_second_job_waits_for_a_token() -> None:
    hundred_a_minute.defer(7)
    hundred_a_minute.defer(7)
    assert statuses() == {"queued": 1, "blocked": 1}
    due = RateBucket.objects.get().due_at
    assert due is not None
    assert 0.0 < (next_rate(store) or 0) <= 0.6  # a token takes 0.6 seconds at this rate


def test_a_burst_is_never_exceeded_by_queued_jobs_however_long_nobody_claims() -> None:
    """A queued job counts as a taken token. Otherwise each hour would bring three more queued jobs."""
    burst_of_three.defer_many([(7,)] * 9)
    key = rate_key_of(burst_of_three, 7)
    for _ in range(3):
        let_time_pass(36_000)
        assert admit_and_count(key) == 0
    assert statuses() == {"queued": 3, "blocked": 6}
    claim_ids()
    assert admit_and_count(key) == 0  # the queued jobs have taken their tokens a moment ago
    let_time_pass(3600)
    assert admit_and_count(key) == 1


def test_the_tokens_of_a_tenth_of_a_second_are_kept_while_a_supervisor_is_late() -> None:
    """At 20 jobs a second and a burst of one, an admission that is an hour late finds two more tokens, not 72,000."""
    for _ in range(9):
        make_job("blocked", rate_key="k", rate_interval=0.05, rate_burst=1)
    assert admit_and_count("k") == 1
    claim_ids()
    let_time_pass(3600)
    assert admit_and_count("k") == 1, "never more than the burst is queued"
    bucket = RateBucket.objects.get()
    assert bucket.due_at is not None
    assert (bucket.due_at - bucket.full_at).total_seconds() == pytest.approx(0.05 + 0.05 / 4, abs=1e-5)
    assert admit_and_count("k") == 0, "no worker has claimed the job"
    claim_ids()
    assert admit_and_count("k") == 1


def test_an_idle_key_collects_no_more_tokens_than_the_burst() -> None:
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    assert admit_and_count("k") == 1
    claim_ids()
    let_time_pass(3600)
    for _ in range(3):
        make_job("blocked", rate_key="k", rate_interval=0.05, rate_burst=1)
    assert admit_and_count("k") == 1
    bucket = RateBucket.objects.get()
    assert bucket.due_at == bucket.full_at


def test_the_highest_priority_and_then_the_first_enqueued_is_admitted() -> None:
    burst_of_three.defer_many([(7,)] * 3)
    claim_ids()
    low, high, later = (burst_of_three.using(priority=number).defer(7).pk for number in (-5, 5, 5))
    key = rate_key_of(burst_of_three, 7)
    for expected in (high, later, low):
        let_time_pass(3600)
        assert admit_and_count(key) == 1
        assert claim_ids() == [expected]


def test_rates_of_one_name_are_shared() -> None:
    shares_rate.defer()
    shares_rate_too.defer()
    assert statuses() == {"queued": 1, "blocked": 1}


def test_a_retry_takes_a_token_again() -> None:
    [id, *_] = burst_of_three.defer_many([(7,)] * 3)
    claim_ids()
    settle(id, outcome=RETRY_NOW)
    assert Job.objects.get(pk=id).status == "blocked"
    let_time_pass(3600)
    assert admit_and_count(rate_key_of(burst_of_three, 7)) == 1
    assert claim_ids() == [id]


def test_a_retry_is_announced_to_the_supervisors() -> None:
    [id, *_] = burst_of_three.defer_many([(7,)] * 3)
    claim_ids()
    with connect() as session:
        session.execute("LISTEN skipqueue_supervisors")
        settle(id, outcome=RETRY_NOW)
        [notification] = session.notifies(timeout=5, stop_after=1)
    assert notification.payload == ",rate " + rate_key_of(burst_of_three, 7)


def test_a_recovered_job_takes_a_token_again_and_keeps_its_permit() -> None:
    [first, second] = rated_and_limited.defer_many([("a",)] * 2)
    assert claim_ids() == [first]
    store.recover(worker_ids=["w"])
    job = Job.objects.get(pk=first)
    assert (job.status, job.gate) == ("blocked", "rate")
    assert admit_keys(store, [job.limit_key or ""]).counts == {}
    assert admit_and_count(job.rate_key or "") == 1  # the second token of the burst
    assert claim_ids() == [first]
    assert Job.objects.get(pk=second).status == "blocked"


def test_a_released_job_keeps_its_token() -> None:
    [id] = burst_of_three.defer_many([(7,)])
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    store.release([claimed.ref])
    assert Job.objects.get(pk=id).status == "queued"


def test_a_due_job_waits_for_its_rate() -> None:
    burst_of_three.defer_many([(7,)] * 3)
    claim_ids()
    due_job = burst_of_three.using(run_after=timedelta(hours=1)).defer(7)
    assert due_job.status == "scheduled"
    Job.objects.filter(pk=due_job.pk).update(run_after=due_job.enqueued_at)
    store.admit()
    assert Job.objects.get(pk=due_job.pk).status == "blocked"
    let_time_pass(3600)
    assert admit_and_count(rate_key_of(burst_of_three, 7)) == 1


def test_a_job_that_waits_for_another_job_waits_for_its_rate_afterwards() -> None:
    needed = jobs.noop.defer()
    waiting = burst_of_three.using(after=[needed]).defer(7)
    assert sweep_and_count() == 0
    assert Job.objects.get(pk=waiting.pk).status == "blocked"
    claim_ids()
    settle(needed.pk)
    admit_dependants(store, [needed.pk])
    assert sweep_and_count() == 1
    assert claim_ids() == [waiting.pk]


def sweep_and_count() -> int:
    """Admit jobs of all keys, and return how many jobs are queued then and were not before."""
    queued_before = Job.objects.queued().count()
    sweep_gates(store)
    return Job.objects.queued().count() - queued_before


def test_a_job_gets_its_permit_first_and_keeps_it_while_it_waits_for_a_token() -> None:
    """With two tokens and one permit for each account, neither is exceeded, whichever becomes free first."""
    first_of_a, second_of_a, job_of_b, job_of_c = (rated_and_limited.defer(account).pk for account in "aabc")
    assert claim_ids() == [first_of_a, job_of_b]
    states = {job.pk: (job.status, job.gate) for job in Job.objects.all()}
    assert states[job_of_c] == ("blocked", "rate")
    assert states[second_of_a] == ("blocked", "limit")
    let_time_pass(3600)
    settle(first_of_a)
    assert admit_keys(store, [limit_key_of("a")]).later == {
        rate_key_of(rated_and_limited, "a")
    }  # now it waits for a token
    assert admit_keys(store, [limit_key_of("c")]) == Admitted(counts={}, missed=[])  # the permit of its key is taken
    assert admit_and_count(rate_key_of(rated_and_limited, "a")) == 1
    assert claim_ids() == [second_of_a]  # this job was enqueued before the job of c
    let_time_pass(3600)
    assert admit_and_count(rate_key_of(rated_and_limited, "a")) == 1
    assert claim_ids() == [job_of_c]


def limit_key_of(account: str) -> str:
    return str(rated_and_limited.encoded((account,), {}).columns["limit_key"])


def test_a_sequence_with_a_rate_stays_in_order() -> None:
    first, second, third = rated_in_order.defer_many([("x",)] * 3)
    assert claim_ids() == [first]
    settle(first)
    assert sweep_and_count() == 0
    assert Job.objects.get(pk=second).gate == "rate"
    assert Job.objects.get(pk=third).gate == "limit"
    let_time_pass(3600)
    assert sweep_and_count() == 1
    assert claim_ids() == [second]


@pytest.mark.parametrize("verb", ["discard", "cancel"])
def test_a_discarded_waiting_job_returns_its_permit(verb: str) -> None:
    rated_and_limited.defer_many([("a",), ("b",), ("c",), ("c",)])
    permit_holder = Job.objects.get(gate="rate")
    assert getattr(permit_holder, verb)()
    claim_ids()
    let_time_pass(3600)
    assert sweep_and_count() == 1
    assert Job.objects.filter(status="queued").count() == 1
    assert permit_holder.retry()
    retried = Job.objects.get(pk=permit_holder.pk)
    assert (retried.status, retried.gate) == ("blocked", "limit")  # the other job of the account holds the permit


def test_a_job_that_is_postponed_while_it_has_a_permit_gives_the_permit_back() -> None:
    rated_and_limited.defer_many([("a",), ("b",), ("c",), ("c",)])
    permit_holder = Job.objects.get(gate="rate")
    assert permit_holder.postpone(timedelta(hours=1))
    assert Job.objects.get(pk=permit_holder.pk).gate is None
    sweep_gates(store)
    assert Job.objects.get(gate="rate").pk != permit_holder.pk


def test_a_job_that_is_rescheduled_to_now_waits_at_the_gates_again() -> None:
    rated_and_limited.defer_many([("a",), ("b",), ("c",), ("c",)])
    permit_holder = Job.objects.get(gate="rate")
    Store("default").reschedule([permit_holder.pk], timedelta(0))
    rescheduled = Job.objects.get(pk=permit_holder.pk)
    assert (rescheduled.status, rescheduled.gate) == ("blocked", "limit")


def test_a_waiting_job_can_change_its_queue_and_its_priority() -> None:
    burst_of_three.defer_many([(7,)] * 5)
    last_job = Job.objects.order_by("-pk")[0]
    store.change_priority([last_job.pk], 50)
    store.change_queue([last_job.pk], "mail")
    claim_ids()
    let_time_pass(3600)
    assert admit_rate_keys(store, [last_job.rate_key or ""]) == Admitted(counts={"mail": 1}, missed=[])


def test_nothing_is_admitted_within_the_transaction_of_the_caller() -> None:
    with transaction.atomic():
        burst_of_three.defer(7)
        assert statuses() == {"blocked": 1}
        assert not RateBucket.objects.exists()
    assert statuses() == {"queued": 1}


def test_a_rolled_back_enqueue_takes_no_token() -> None:
    with transaction.atomic():
        burst_of_three.defer(7)
        transaction.set_rollback(True)
    assert not RateBucket.objects.exists()


def test_a_rollback_returns_the_tokens_and_undoes_the_admission() -> None:
    """One statement takes tokens and admits. A rollback undoes both."""
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    with transaction.atomic():
        assert admit_and_count("k") == 1
        transaction.set_rollback(True)
    assert statuses() == {"blocked": 1}
    assert admit_and_count("k") == 1


def test_a_key_that_another_transaction_has_locked_is_left_to_the_notified_supervisors() -> None:
    key = rate_key_of(burst_of_three, 7)
    with connect(autocommit=False) as other_session, connect() as listening:
        listening.execute("LISTEN skipqueue_supervisors")
        other_session.execute(LOCK_RATES, {"keys": [key]})
        burst_of_three.defer(7)
        assert statuses() == {"blocked": 1}
        [notification] = listening.notifies(timeout=5, stop_after=1)
        assert notification.payload == ",rate " + key
        other_session.rollback()
    service = Admit(store)
    service.notified([notification.payload])
    service.run(0.0)
    assert statuses() == {"queued": 1}


def test_supervisors_try_a_locked_key_again(unused_gate: RateGate) -> None:
    key = rate_key_of(burst_of_three, 7)
    make_job("blocked", rate_key=key, rate_interval=60.0, rate_burst=1)
    with connect(autocommit=False) as other_session:
        other_session.execute(LOCK_RATES, {"keys": [key]})
        unused_gate.want("default", [key])
        assert unused_gate.admit(store, limit=100).by_queue == {}
        other_session.rollback()
    assert 0 < (unused_gate.next_due(store) or 0) <= 0.1


def test_locks_of_limits_and_of_rates_are_different_locks() -> None:
    with connect(autocommit=False) as other_session:
        other_session.execute(LOCK_KEYS, {"ids": "{}", "keys": ["k"]})
        make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
        assert admit_and_count("k") == 1


def test_no_job_is_admitted_at_isolation_level_repeatable_read() -> None:
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert admit_rate_keys(store, ["k"]) == Admitted(counts={}, missed=["k"])


def test_after_the_clock_was_set_back_the_key_waits_for_one_interval_at_most() -> None:
    """At most a burst of tokens is missing, and a key whose due time is too late needs a check."""
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    assert admit_and_count("k") == 1
    claim_ids()
    let_time_pass(-7200)
    assert blocked_rates(store) == {"k": True}
    assert admit_and_count("k") == 0
    assert blocked_rates(store) == {"k": False}
    assert 59 < (next_rate(store) or 0) <= 60
    let_time_pass(60)
    assert admit_and_count("k") == 1


def test_after_the_clock_was_set_forward_a_key_has_one_burst() -> None:
    burst_of_three.defer_many([(7,)] * 20)
    claim_ids()
    let_time_pass(1e6)  # about eleven days
    assert admit_and_count(rate_key_of(burst_of_three, 7)) == 3


def test_the_sweep_finds_a_key_that_a_dead_process_has_left(unused_gate: RateGate) -> None:
    """The test makes the rows that a death between the commit of an enqueue and the admission leaves."""
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)
    assert unused_gate.next_due(store) == 0.0
    assert unused_gate.admit(store, limit=100).by_queue == {"default": 1}
    assert not unused_gate.admit(store, limit=100).has_changed_jobs


def test_the_sweep_goes_through_all_keys(unused_gate: RateGate) -> None:
    for number in range(25):
        make_job("blocked", rate_key=f"k{number:02}", rate_interval=60.0, rate_burst=1)
    assert sweep_gates(store, limit=10)
    assert statuses() == {"queued": 25}


def test_a_notification_without_keys_makes_a_sweep_of_all_keys_due() -> None:
    service = Admit(store)
    service.run(0.0)
    make_job("blocked", rate_key="k", rate_interval=60.0, rate_burst=1)

    def is_queued_after_a_notification() -> bool:
        service.notified([GATES_PAYLOAD])
        service.run(0.0)
        return statuses() == {"queued": 1}

    wait_until(is_queued_after_a_notification)


def test_notifications_do_not_make_a_process_sweep_all_the_time(
    unused_gate: RateGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep rests for nineteen times its own duration."""
    monkeypatch.setattr(keyed_gate, "SWEEP_SHARE", 1e-6)  # a sweep may take a millionth of the time
    unused_gate.admit(store, limit=9)
    unused_gate.sweep_now("default")
    assert (unused_gate.next_due(store) or 0.0) > 60.0


def test_more_notified_keys_than_fit_are_found_by_a_sweep_of_all_keys(unused_gate: RateGate) -> None:
    unused_gate.admit(store, limit=100)
    unused_gate.want("default", [f"k{number}" for number in range(1001)])
    make_job("blocked", rate_key="other", rate_interval=60.0, rate_burst=1)
    assert wait_until(lambda: unused_gate.admit(store, limit=100).by_queue) == {"default": 1}


def test_only_full_buckets_are_deleted() -> None:
    burst_of_three.defer_many([(1,), (2,), (2,), (2,), (2,), (3,)])
    claim_ids()
    assert prune_rates(store) == 0
    # as if all buckets except that of key 2 had become full at the enqueue
    RateBucket.objects.exclude(key=rate_key_of(burst_of_three, 2)).update(full_at=Job.objects.all()[0].enqueued_at)
    let_time_pass(61)  # a bucket is kept for a minute after it has become full
    assert prune_rates(store) == 2
    assert RateBucket.objects.get().key == rate_key_of(burst_of_three, 2)


def test_a_key_without_waiting_jobs_is_not_due_any_more() -> None:
    burst_of_three.defer_many([(7,)] * 4)
    assert next_rate(store) is not None
    Job.objects.filter(status="blocked").delete()
    let_time_pass(3600)
    assert due_rates(store)
    admit_and_count(*due_rates(store))
    assert next_rate(store) is None


def test_jobs_without_a_rate_have_no_rate_key() -> None:
    jobs.noop.defer()
    two_per_account.defer("a")
    assert set(Job.objects.values_list("rate_key", "gate")) == {(None, None)}


def test_many_jobs_of_many_keys_are_deferred_at_once() -> None:
    burst_of_three.defer_many([(number % 100,) for number in range(1000)])
    assert statuses() == {"queued": 300, "blocked": 700}


def test_supervisors_admit_the_jobs_of_more_than_a_hundred_keys() -> None:
    """The enqueuing process admits the jobs of at most a hundred keys."""
    with connect() as listening:
        listening.execute("LISTEN skipqueue_supervisors")
        burst_of_three.defer_many([(number % 150,) for number in range(300)])
        assert statuses() == {"queued": 200, "blocked": 100}
        [notification] = listening.notifies(timeout=5, stop_after=1)
    service = Admit(store)
    service.notified([notification.payload])
    service.run(0.0)
    assert statuses() == {"queued": 300}


def test_two_sessions_never_take_the_same_token() -> None:
    """While the first transaction is open, the second finds the key locked. Afterwards it finds the token taken."""
    for _ in range(2):
        make_job("blocked", rate_key="k", rate_interval=3600.0, rate_burst=1)
    with connect(autocommit=False) as other_session:
        other_session.execute(LOCK_RATES, {"keys": ["k"]})
        other_session.execute(rate_admission.ADMIT_BY_RATE)
        assert admit_rate_keys(store, ["k"]) == Admitted(counts={}, missed=["k"])
        other_session.commit()
    assert admit_rate_keys(store, ["k"]) == Admitted(counts={}, missed=[])
    assert statuses() == {"queued": 1, "blocked": 1}


@pytest.mark.parametrize("task", [hundred_a_minute, hundred_a_minute_of_two], ids=["alone", "with a limit"])
@pytest.mark.parametrize("enqueued", ["one by one", "together"])
def test_supervisors_are_notified_of_a_token_that_comes_soon(task: Any, enqueued: str) -> None:
    """Without a notification, an idle supervisor would check two seconds later."""
    with connect() as session:
        session.execute("LISTEN skipqueue_supervisors")
        if enqueued == "together":
            task.defer_many([(7,)] * 2)
        else:
            task.defer(7)
            task.defer(7)
        [notification] = session.notifies(timeout=5, stop_after=1)
    assert notification.payload == SCHEDULED_PAYLOAD


def test_a_due_job_takes_its_permit_and_its_token_at_once() -> None:
    due_job = rated_and_limited.using(run_after=timedelta(hours=1)).defer("a")
    Job.objects.filter(pk=due_job.pk).update(run_after=due_job.enqueued_at)
    assert TIME_GATE.admit(store, limit=10).by_queue == {"default": 1}
    assert Job.objects.get(pk=due_job.pk).status == "queued"


def test_a_job_that_is_given_a_permit_takes_its_token_at_once() -> None:
    job = rated_and_limited.using(run_after=timedelta(hours=1)).defer("a")
    Job.objects.filter(pk=job.pk).update(status="blocked", gate="limit")
    assert LimitGate().admit(store, limit=10).by_queue == {"default": 1}
    assert Job.objects.get(pk=job.pk).status == "queued"
