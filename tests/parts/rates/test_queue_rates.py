"""Rates of whole queues: to which jobs they apply, and how they change at run time."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_skipqueue import Batch, conf
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.models import Job, Queue, RateBucket
from django_skipqueue.parts.limits.queues import block_surplus
from django_skipqueue.parts.rates.admit import RateGate, admit_rate_keys, blocked_rates, due_rates, next_rate
from django_skipqueue.parts.rates.queues import BLOCK_UNRATED, block_unrated
from django_skipqueue.parts.rates.services import block_unrated_service
from django_skipqueue.queue import gates
from django_skipqueue.queue.enqueue import with_queue_limits
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.notify import QUEUES_PAYLOAD
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import EncodedCall

from ...app import jobs
from ...app.limits.jobs import two_per_account
from ...app.rates.jobs import burst_of_three
from ...app.sessions import LAST_MIGRATION, connect, schema
from ...harness.processes import statuses

store = Store("default")
RETRY_NOW = Outcome("scheduled", delay=0.0, last_error="no", error={"message": "no"})

pytestmark = pytest.mark.django_db(transaction=True)

noop_in_mail = jobs.noop.using(queue_name="mail")
noop_in_later = jobs.noop.using(queue_name="later")
MAIL_KEY = "queue:mail"


@pytest.fixture(autouse=True)
def queue_rates(settings: Any) -> None:
    """`mail` starts one job an hour, the rate of `later` is set by a test, and `both` has a rate and a limit."""
    settings.SKIPQUEUE = {
        "QUEUES": {
            "mail": {"rate": "1/h"},
            "later": {"rate": None},
            "both": {"rate": "3/s", "concurrency": 2},
        }
    }


@pytest.fixture(autouse=True)
def unused_gate(monkeypatch: pytest.MonkeyPatch) -> RateGate:
    """A gate that no other test has used: its pace depends on earlier admissions."""
    gate = RateGate()
    other_gates = gates.gates()[:-1]
    monkeypatch.setattr(gates, "gates", lambda: [*other_gates, gate])
    return gate


def let_time_pass(seconds: float) -> None:
    """Change every bucket as if these seconds had passed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE skipqueue_rate SET full_at = full_at - make_interval(secs => %(seconds)s), "
            "due_at = due_at - make_interval(secs => %(seconds)s)",
            {"seconds": seconds},
        )


def claim_ids(queue: str = "mail", limit: int = 100) -> list[int]:
    """The ids of the jobs that a worker claims."""
    return [job.id for job in store.claim(queue_names=[queue], limit=limit, worker_id="w")]


def settle(*ids: int, outcome: Outcome = COMPLETED) -> None:
    leases = dict(Job.objects.filter(pk__in=ids).values_list("pk", "lease"))
    store.settle([Settlement(id, leases[id], outcome) for id in ids])


def admit_and_count(key: str = MAIL_KEY) -> int:
    """Admit jobs with this rate key, and return how many have been admitted."""
    return sum(admit_rate_keys(store, [key]).counts.values())


def test_jobs_beyond_the_rate_of_their_queue_wait_for_a_token() -> None:
    first, second, third = noop_in_mail.defer_many([()] * 3)
    assert claim_ids() == [first]
    assert admit_and_count() == 0
    for expected in (second, third):
        let_time_pass(3600)
        assert admit_and_count() == 1
        assert claim_ids() == [expected]


def test_a_deferred_job_has_the_key_of_its_queue() -> None:
    deferred = noop_in_mail.defer()
    assert (deferred.rate_key, deferred.rate_interval, deferred.rate_burst) == (MAIL_KEY, 3600.0, 1)
    assert Job.objects.get().rate_key == MAIL_KEY
    assert Job.objects.enqueue("t", queue_name="mail").rate_key == MAIL_KEY
    with Batch(on_finish=noop_in_mail.s()) as batch:
        noop_in_mail.defer()
    assert set(Job.objects.values_list("rate_key", "limit_key")) == {(MAIL_KEY, None)}
    assert batch


def test_a_job_of_a_queue_without_a_rate_takes_no_token() -> None:
    job = jobs.noop.defer()
    assert (job.rate_key, job.status) == (None, "queued")
    call = EncodedCall("[]", "{}")
    assert with_queue_limits("default", [call]) == [call]


def test_a_jobs_own_rate_replaces_the_rate_of_its_queue() -> None:
    burst_of_three.using(queue_name="mail").defer_many([(7,)] * 3)
    assert len(claim_ids()) == 3
    assert not Job.objects.filter(rate_key=MAIL_KEY).exists()


def test_a_limit_of_the_job_and_the_rate_of_its_queue_hold_together() -> None:
    two_per_account.using(queue_name="both").defer_many([("a",)] * 4)
    assert set(Job.objects.values_list("rate_key", flat=True)) == {"queue:both"}
    assert {key.partition(":")[0] for key in Job.objects.values_list("limit_key", flat=True) if key} == {"limit"}
    assert statuses() == {"queued": 2, "blocked": 2}


def test_the_rate_of_the_job_and_the_limit_of_its_queue_hold_together() -> None:
    burst_of_three.using(queue_name="both").defer_many([(7,)] * 5)
    assert set(Job.objects.values_list("limit_key", flat=True)) == {"queue:both"}
    assert not Job.objects.filter(rate_key="queue:both").exists()
    assert len(claim_ids("both")) == 2


def test_a_limit_and_a_rate_of_a_queue_hold_together() -> None:
    jobs.noop.using(queue_name="both").defer_many([()] * 5)
    assert statuses() == {"queued": 2, "blocked": 3}
    ids = claim_ids("both")
    assert len(ids) == 2
    settle(*ids)
    sweep_gates(store)
    assert statuses()["queued"] <= 2


def test_a_queue_without_a_rate_admits_all_jobs_until_it_gets_a_rate() -> None:
    """When the rate is set, queued jobs beyond the burst are blocked again. Running jobs go on."""
    noop_in_later.defer_many([()] * 8)
    assert statuses() == {"queued": 8}
    assert len(claim_ids("later", limit=2)) == 2
    Queue.rate("later", "3/m")
    assert block_unrated(store) == 5
    assert statuses() == {"running": 2, "queued": 1, "blocked": 5}
    noop_in_later.defer()
    assert statuses() == {"running": 2, "queued": 1, "blocked": 6}
    claim_ids("later")
    let_time_pass(20)
    assert admit_and_count("queue:later") == 1


def test_jobs_that_a_new_rate_blocks_keep_their_permits() -> None:
    Queue.rate("both", None)
    jobs.noop.using(queue_name="both").defer_many([()] * 4)
    assert statuses() == {"queued": 2, "blocked": 2}
    Queue.rate("both", "1/h")
    assert block_unrated(store) == 1
    assert Job.objects.get(gate="rate").status == "blocked"
    sweep_gates(store)
    assert Job.objects.filter(limit_key="queue:both").exclude(gate="limit").count() == 2


def test_a_lowered_limit_takes_the_permits_of_jobs_that_wait_for_their_rate() -> None:
    Queue.limit("both", 10)
    jobs.noop.using(queue_name="both").defer_many([()] * 10)
    assert statuses() == {"queued": 3, "blocked": 7}
    running = claim_ids("both", limit=1)
    Queue.limit("both", 2)
    assert block_surplus(store) == 8
    assert not Job.objects.filter(gate="rate").exists()
    for _ in range(3):
        let_time_pass(1)
        admit_and_count("queue:both")
        sweep_gates(store)
        running += claim_ids("both")
    assert len(running) == 2


def test_permits_beyond_a_lowered_limit_are_first_taken_from_jobs_that_would_start_last() -> None:
    Queue.limit("both", 10)
    jobs.noop.using(queue_name="both").defer_many([()] * 5)
    jobs.noop.using(queue_name="both", priority=5).defer()
    Queue.limit("both", 4)
    assert [block_surplus(store, limit=1) for _ in range(3)] == [1, 1, 0]
    assert statuses() == {"queued": 3, "blocked": 3}
    assert Job.objects.get(gate="rate").priority == 5


def test_queued_jobs_beyond_a_new_rate_are_blocked_in_batches_the_highest_priority_last() -> None:
    noop_in_later.defer_many([()] * 5)
    first = noop_in_later.using(priority=5).defer().pk
    Queue.rate("later", "1/h")
    assert [block_unrated(store, limit=3) for _ in range(3)] == [3, 2, 0]
    assert claim_ids("later") == [first]


INSERT_QUEUED_JOBS = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, lease, run_after, enqueued_at, rate_key, rate_interval, rate_burst
)
SELECT 'later', 't', '[]', '{}', 'queued', 0, now(), now(), 'queue:later', NULL, NULL FROM generate_series(1, 3000)
"""


def test_queued_jobs_beyond_a_new_rate_are_found_without_the_claim_index() -> None:
    """A table without statistics seems small: on PostgreSQL 15 the statement would walk the claim index for each job.

    The test has its own table. The table of the other tests may have statistics of a time with few queued jobs.
    """
    with schema("unrated") as migrate, connect(options="-c search_path=unrated") as session:
        migrate(LAST_MIGRATION)
        session.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
        session.execute(INSERT_QUEUED_JOBS)
        rows = psycopg.ClientCursor(session).execute(f"EXPLAIN {BLOCK_UNRATED}", {"limit": 1_000})
        plan = "\n".join(line for (line,) in rows.fetchall())
    assert "skipqueue_job_claim" not in plan, plan


def test_the_notified_service_blocks_jobs_beyond_a_new_rate_and_announces_the_key() -> None:
    noop_in_later.defer_many([()] * 5)
    service = block_unrated_service(store)
    service.run(0.0)
    Queue.rate("later", "1/h")
    with connect() as session:
        session.execute("LISTEN skipqueue_supervisors")
        service.notified([QUEUES_PAYLOAD])
        assert service.due_at == 0.0
        service.run(0.0)
        [notification] = session.notifies(timeout=5, stop_after=1)
    assert notification.payload == ",rate queue:later"
    assert statuses() == {"queued": 1, "blocked": 4}


def test_a_higher_rate_admits_at_once_and_without_a_rate_all_jobs_are_admitted() -> None:
    noop_in_mail.defer_many([()] * 10)
    assert statuses() == {"queued": 1, "blocked": 9}
    claim_ids()
    Queue.rate("mail", "4/s")
    let_time_pass(0.5)
    assert admit_and_count() >= 1
    Queue.rate("mail", None)
    assert Job.objects.blocked().count() == 0


def test_after_a_rate_is_removed_thousands_of_jobs_are_admitted_in_batches() -> None:
    noop_in_mail.defer_many([()] * 2_100)
    Queue.rate("mail", None)
    assert Job.objects.blocked().count() == 1_099
    bucket = RateBucket.objects.get()
    assert bucket.due_at == bucket.full_at, "the remaining jobs are due at once"
    assert [admit_and_count(), admit_and_count()] == [1_000, 99]
    assert due_rates(store) == []


def test_a_rate_that_was_changed_is_not_forgotten_when_its_process_dies(unused_gate: RateGate) -> None:
    """The sweep compares the due time of a key with the current rate of the queue, not with the rate in its jobs."""
    noop_in_mail.defer_many([()] * 3)
    claim_ids()
    assert (next_rate(store) or 0) > 3000
    # the row that is left if the process dies right after its commit
    Queue.objects.create(name="mail", rate_interval=0.02, rate_burst=50)
    assert blocked_rates(store) == {MAIL_KEY: True}
    unused_gate.admit(store, limit=100)
    assert (next_rate(store) or 0) <= 0.5


def test_the_rate_of_the_settings_applies_again_after_an_operators_rate() -> None:
    Queue.rate("mail", None)
    noop_in_mail.defer_many([()] * 5)
    assert statuses() == {"queued": 5}
    Queue.rate_by_settings("mail")
    assert block_unrated(store) == 4
    assert statuses() == {"queued": 1, "blocked": 4}
    Queue.rate_by_settings("later")
    noop_in_later.defer_many([()] * 2)
    assert block_unrated(store) == 0


def test_a_changed_rate_is_rolled_back_with_its_transaction() -> None:
    noop_in_mail.defer_many([()] * 5)
    with transaction.atomic():
        Queue.rate("mail", None)
        transaction.set_rollback(True)
    sweep_gates(store)
    assert statuses() == {"queued": 1, "blocked": 4}


def test_changing_a_pause_a_limit_or_a_rate_keeps_the_other_two() -> None:
    Queue.rate("mail", "2/s")
    Queue.objects.update_or_create(name="mail", defaults={"concurrency": 2})
    Queue.pause("mail")
    Queue.rate("mail", "3/s")
    queue = Queue.objects.paused().get()
    assert (queue.concurrency, queue.rate_interval, queue.rate_burst) == (2, 1 / 3, 3)
    Queue.limit_by_settings("mail")
    assert Queue.objects.get().rate_burst == 3


def test_a_queues_row_without_a_rate_leaves_the_rate_of_the_settings() -> None:
    Queue.objects.create(name="mail", concurrency=5)
    noop_in_mail.defer_many([()] * 3)
    assert statuses() == {"queued": 1, "blocked": 2}


def test_queues_do_not_share_their_rates() -> None:
    Queue.rate("later", "1/h")
    noop_in_mail.defer_many([()] * 2)
    assert claim_ids() != []
    Queue.objects.create(name="default", rate_interval=3_600.0, rate_burst=1)
    burst_of_three.defer_many([(7,)] * 4)
    assert Job.objects.filter(queue_name="default").queued().count() == 3


# After an attempt: retried, released, recovered, moved to another queue


@pytest.mark.parametrize("verb", ["retried", "by hand", "snoozed"])
def test_each_further_attempt_takes_a_token_again(verb: str) -> None:
    [id] = noop_in_mail.defer_many([()])
    claim_ids()
    if verb == "by hand":
        settle(id, outcome=Outcome("failed", last_error="no", error={"message": "no"}))
        assert Job.objects.get().retry()
    else:
        settle(id, outcome=RETRY_NOW if verb == "retried" else Outcome("scheduled", delay=0.0, refund=1))
    assert statuses() == {"blocked": 1}
    assert admit_and_count() == 0
    let_time_pass(3600)
    assert admit_and_count() == 1
    assert claim_ids() == [id]


def test_a_released_job_keeps_its_token_and_a_recovered_job_takes_another_token() -> None:
    noop_in_mail.defer()
    [claimed] = store.claim(queue_names=["mail"], limit=1, worker_id="w")
    store.release([claimed.ref])
    assert statuses() == {"queued": 1}
    claim_ids()
    store.recover(worker_ids=["w"])
    assert statuses() == {"blocked": 1}


def test_a_job_that_changes_its_queue_changes_its_rate() -> None:
    noop_in_mail.defer()
    claim_ids()
    job = jobs.noop.defer()
    assert job.change_queue("mail")
    job.refresh_from_db()
    assert (job.status, job.rate_key, job.rate_interval, job.rate_burst) == ("blocked", MAIL_KEY, 3600.0, 1)
    assert job.change_queue("other")
    job.refresh_from_db()
    assert (job.status, job.rate_key, job.rate_interval, job.rate_burst) == ("queued", None, None, None)


def test_a_job_that_changes_its_queue_keeps_a_rate_of_its_own() -> None:
    with_own_rate = burst_of_three.defer(7)
    key = with_own_rate.rate_key
    assert with_own_rate.change_queue("mail")
    with_own_rate.refresh_from_db()
    assert (with_own_rate.status, with_own_rate.rate_key, with_own_rate.rate_burst, with_own_rate.gate) == (
        "queued",
        key,
        3,
        None,
    )


def test_a_job_keeps_the_permit_of_its_own_limit_in_its_new_queue() -> None:
    """The job keeps one of two permits while it waits for its rate and while it is queued. A third job waits."""
    first, second, third = two_per_account.defer_many([("a",)] * 3)
    store.change_queue([first, second, third], "mail")
    states = {job.pk: (job.status, job.gate, job.rate_key) for job in Job.objects.all()}
    assert states == {
        first: ("blocked", "rate", MAIL_KEY),
        second: ("blocked", "rate", MAIL_KEY),
        third: ("blocked", "limit", MAIL_KEY),
    }
    store.change_queue([first, second, third], "default")
    states = {job.pk: (job.status, job.gate, job.rate_key) for job in Job.objects.all()}
    assert states == {first: ("queued", None, None), second: ("queued", None, None), third: ("blocked", "limit", None)}


def test_a_job_that_goes_to_a_queue_with_a_limit_and_a_rate_gets_both() -> None:
    job = jobs.noop.defer()
    assert job.change_queue("both")
    job.refresh_from_db()
    assert (job.status, job.limit_key, job.rate_key, job.gate) == ("blocked", "queue:both", "queue:both", "limit")
    sweep_gates(store)
    sweep_gates(store)
    assert statuses() == {"queued": 1}
    assert job.change_queue("mail")
    job.refresh_from_db()
    assert (job.status, job.limit_key, job.rate_key, job.gate) == ("blocked", None, MAIL_KEY, "rate")


def test_a_scheduled_or_held_job_waits_on_in_its_new_queue() -> None:
    scheduled = jobs.noop.using(run_after=timedelta(hours=1)).defer()
    held_job = jobs.noop.using(after=[jobs.noop.defer()]).defer()
    for job, status in ((scheduled, "scheduled"), (held_job, "blocked")):
        for queue, key in (("mail", MAIL_KEY), ("default", None)):
            job.change_queue(queue)
            job.refresh_from_db()
            assert (job.status, job.rate_key) == (status, key)


# Invalid values


@pytest.mark.parametrize("value", ["", "50", "0/s", "20000/s", "1/400d", 5, True, "50/s "])
def test_a_queue_rate_with_an_invalid_value_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="rate takes"):
        Queue.rate("mail", value)
    assert not Queue.objects.exists()


def test_a_name_that_no_queue_can_have_is_refused() -> None:
    with pytest.raises(InvalidOption):
        Queue.rate("a,b", "1/s")
    with pytest.raises(InvalidOption):
        Queue.rate_by_settings("")
    assert not Queue.objects.exists()


@pytest.mark.parametrize("value", ["fast", "0/s", "20000/s", 5, ["1/s"]])
def test_an_invalid_setting_of_queue_rates_is_reported(settings: Any, value: Any) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"rate": value}}}
    [problem] = conf.problems()
    assert problem.startswith("SKIPQUEUE['QUEUES']['mail']['rate'] must be a number of jobs and a time")
    assert problem.endswith(f"or None for a rate that is set in the admin, not {value!r}.")


def test_settings_with_a_rate_are_valid(settings: Any) -> None:
    for value in ("50/s", "3/10s", None):
        settings.SKIPQUEUE = {"QUEUES": {"mail": {"concurrency": 20, "rate": value}}}
        assert not list(conf.problems())
    assert not RateBucket.objects.exists()
