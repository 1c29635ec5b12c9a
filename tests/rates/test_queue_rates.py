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

from ..app import jobs
from ..app.limits.jobs import free_two
from ..app.rates.jobs import burst_of_three
from ..app.sessions import LAST_MIGRATION, connect, schema
from ..harness.processes import statuses

store = Store("default")
AGAIN = Outcome("scheduled", delay=0.0, last_error="no", error={"message": "no"})

pytestmark = pytest.mark.django_db(transaction=True)

mail = jobs.noop.using(queue_name="mail")
later = jobs.noop.using(queue_name="later")
KEY = "queue:mail"


@pytest.fixture(autouse=True)
def queues(settings: Any) -> None:
    """Three queues: one starts a job an hour; the rate of one is set later; one has a rate and a limit."""
    settings.SKIPQUEUE = {
        "QUEUES": {
            "mail": {"rate": "1/h"},
            "later": {"rate": None},
            "both": {"rate": "3/s", "concurrency": 2},
        }
    }


@pytest.fixture(autouse=True)
def own_gate(monkeypatch: pytest.MonkeyPatch) -> RateGate:
    """A gate that no other test has used: its pace depends on earlier admissions."""
    gate = RateGate()
    others = gates.gates()[:-1]
    monkeypatch.setattr(gates, "gates", lambda: [*others, gate])
    return gate


def pass_time(seconds: float) -> None:
    """Change every bucket as if these seconds had passed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE skipqueue_rate SET full_at = full_at - make_interval(secs => %(s)s), "
            "due_at = due_at - make_interval(secs => %(s)s)",
            {"s": seconds},
        )


def claim(queue: str = "mail", limit: int = 100) -> list[int]:
    return [job.id for job in store.claim(queue_names=[queue], limit=limit, worker_id="w")]


def settle(*ids: int, outcome: Outcome = COMPLETED) -> None:
    leases = dict(Job.objects.filter(pk__in=ids).values_list("pk", "lease"))
    store.settle([Settlement(id, leases[id], outcome) for id in ids])


def admit(key: str = KEY) -> int:
    return sum(admit_rate_keys(store, [key])[0].values())


def test_jobs_beyond_the_rate_of_their_queue_wait_for_a_token() -> None:
    first, second, third = mail.defer_many([()] * 3)
    assert claim() == [first]
    assert admit() == 0
    for expected in (second, third):
        pass_time(3600)
        assert admit() == 1
        assert claim() == [expected]


def test_a_deferred_job_has_the_key_of_its_queue() -> None:
    deferred = mail.defer()
    assert (deferred.rate_key, deferred.rate_interval, deferred.rate_burst) == (KEY, 3600.0, 1)
    assert Job.objects.get().rate_key == KEY
    assert Job.objects.enqueue("t", queue_name="mail").rate_key == KEY
    with Batch(on_finish=mail.s()) as batch:
        mail.defer()
    assert set(Job.objects.values_list("rate_key", "limit_key")) == {(KEY, None)}
    assert batch


def test_a_job_of_another_queue_pays_nothing() -> None:
    job = jobs.noop.defer()
    assert (job.rate_key, job.status) == (None, "queued")
    call = EncodedCall("[]", "{}")
    assert with_queue_limits("default", [call]) == [call]


def test_a_jobs_own_rate_holds_in_place_of_the_rate_of_its_queue() -> None:
    burst_of_three.using(queue_name="mail").defer_many([(7,)] * 3)
    assert len(claim()) == 3
    assert not Job.objects.filter(rate_key=KEY).exists()


def test_a_limit_of_the_job_and_the_rate_of_its_queue_hold_together() -> None:
    free_two.using(queue_name="both").defer_many([("a",)] * 4)
    assert set(Job.objects.values_list("rate_key", flat=True)) == {"queue:both"}
    assert {key.partition(":")[0] for key in Job.objects.values_list("limit_key", flat=True) if key} == {"limit"}
    assert statuses() == {"queued": 2, "blocked": 2}


def test_the_rate_of_the_job_and_the_limit_of_its_queue_hold_together() -> None:
    burst_of_three.using(queue_name="both").defer_many([(7,)] * 5)
    assert set(Job.objects.values_list("limit_key", flat=True)) == {"queue:both"}
    assert not Job.objects.filter(rate_key="queue:both").exists()
    assert len(claim("both")) == 2


def test_a_limit_and_a_rate_of_a_queue_hold_together() -> None:
    jobs.noop.using(queue_name="both").defer_many([()] * 5)
    assert statuses() == {"queued": 2, "blocked": 3}
    ids = claim("both")
    assert len(ids) == 2
    settle(*ids)
    sweep_gates(store)
    assert statuses()["queued"] <= 2


def test_a_queue_without_a_rate_admits_all_jobs_until_it_gets_a_rate() -> None:
    """Admitted jobs beyond the burst wait again. Running jobs run on."""
    later.defer_many([()] * 8)
    assert statuses() == {"queued": 8}
    assert len(claim("later", limit=2)) == 2
    Queue.rate("later", "3/m")
    assert block_unrated(store) == 5
    assert statuses() == {"running": 2, "queued": 1, "blocked": 5}
    later.defer()
    assert statuses() == {"running": 2, "queued": 1, "blocked": 6}
    claim("later")
    pass_time(20)
    assert admit("queue:later") == 1


def test_jobs_that_wait_again_keep_the_permit_of_their_limit() -> None:
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
    running = claim("both", limit=1)
    Queue.limit("both", 2)
    assert block_surplus(store) == 8
    assert not Job.objects.filter(gate="rate").exists()
    for _ in range(3):
        pass_time(1)
        admit("queue:both")
        sweep_gates(store)
        running += claim("both")
    assert len(running) == 2


def test_a_surplus_of_permits_is_first_taken_from_jobs_that_would_start_last() -> None:
    Queue.limit("both", 10)
    jobs.noop.using(queue_name="both").defer_many([()] * 5)
    jobs.noop.using(queue_name="both", priority=5).defer()
    Queue.limit("both", 4)
    assert [block_surplus(store, limit=1) for _ in range(3)] == [1, 1, 0]
    assert statuses() == {"queued": 3, "blocked": 3}
    assert Job.objects.get(gate="rate").priority == 5


def test_a_surplus_waits_again_in_batches_and_the_highest_priority_stays() -> None:
    later.defer_many([()] * 5)
    first = later.using(priority=5).defer().pk
    Queue.rate("later", "1/h")
    assert [block_unrated(store, limit=3) for _ in range(3)] == [3, 2, 0]
    assert claim("later") == [first]


QUEUED = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, lease, run_after, enqueued_at, rate_key, rate_interval, rate_burst
)
SELECT 'later', 't', '[]', '{}', 'queued', 0, now(), now(), 'queue:later', NULL, NULL FROM generate_series(1, 3000)
"""


def test_a_surplus_is_found_without_the_claim_index() -> None:
    """A table without statistics seems small: on PostgreSQL 15 the statement would walk the claim index for each job.

    The test has its own table. The table of the other tests may have statistics of a time with few queued jobs.
    """
    with schema("unrated") as migrate, connect(options="-c search_path=unrated") as session:
        migrate(LAST_MIGRATION)
        session.execute("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
        session.execute(QUEUED)
        rows = psycopg.ClientCursor(session).execute(f"EXPLAIN {BLOCK_UNRATED}", {"limit": 1_000})
        plan = "\n".join(line for (line,) in rows.fetchall())
    assert "skipqueue_job_claim" not in plan, plan


def test_the_notified_service_blocks_a_surplus_and_announces_its_key() -> None:
    later.defer_many([()] * 5)
    service = block_unrated_service(store)
    service.run(0.0)
    Queue.rate("later", "1/h")
    with connect() as session:
        session.execute("LISTEN skipqueue_supervisors")
        service.notified([QUEUES_PAYLOAD])
        assert service.due_at == 0.0
        service.run(0.0)
        [found] = session.notifies(timeout=5, stop_after=1)
    assert found.payload == ",rate queue:later"
    assert statuses() == {"queued": 1, "blocked": 4}


def test_a_higher_rate_admits_at_once_and_a_removed_rate_lets_all_jobs_go() -> None:
    mail.defer_many([()] * 10)
    assert statuses() == {"queued": 1, "blocked": 9}
    claim()
    Queue.rate("mail", "4/s")
    pass_time(0.5)
    assert admit() >= 1
    Queue.rate("mail", None)
    assert Job.objects.blocked().count() == 0


def test_more_than_a_thousand_jobs_are_let_go_in_batches() -> None:
    mail.defer_many([()] * 2_100)
    Queue.rate("mail", None)
    assert Job.objects.blocked().count() == 1_099
    bucket = RateBucket.objects.get()
    assert bucket.due_at == bucket.full_at, "at once"
    assert [admit(), admit()] == [1_000, 99]
    assert due_rates(store) == []


def test_a_rate_that_was_changed_is_not_forgotten_when_its_process_dies(own_gate: RateGate) -> None:
    """The sweep compares the due time of a key with the current rate of the queue, not with the rate in its jobs."""
    mail.defer_many([()] * 3)
    claim()
    assert (next_rate(store) or 0) > 3000
    Queue.objects.create(name="mail", rate_interval=0.02, rate_burst=50)  # the row that a death after the commit leaves
    assert blocked_rates(store) == {KEY: True}
    own_gate.admit(store, limit=100)
    assert (next_rate(store) or 0) <= 0.5


def test_the_rate_of_the_settings_holds_again() -> None:
    Queue.rate("mail", None)
    mail.defer_many([()] * 5)
    assert statuses() == {"queued": 5}
    Queue.rate_by_settings("mail")
    assert block_unrated(store) == 4
    assert statuses() == {"queued": 1, "blocked": 4}
    Queue.rate_by_settings("later")
    later.defer_many([()] * 2)
    assert block_unrated(store) == 0


def test_a_change_is_rolled_back_with_its_transaction() -> None:
    mail.defer_many([()] * 5)
    with transaction.atomic():
        Queue.rate("mail", None)
        transaction.set_rollback(True)
    sweep_gates(store)
    assert statuses() == {"queued": 1, "blocked": 4}


def test_a_pause_a_limit_and_a_rate_leave_each_other_alone() -> None:
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
    mail.defer_many([()] * 3)
    assert statuses() == {"queued": 1, "blocked": 2}


def test_queues_do_not_share_their_rates() -> None:
    Queue.rate("later", "1/h")
    mail.defer_many([()] * 2)
    assert claim() != []
    Queue.objects.create(name="default", rate_interval=3_600.0, rate_burst=1)
    burst_of_three.defer_many([(7,)] * 4)
    assert Job.objects.filter(queue_name="default").queued().count() == 3


# The ends of jobs


@pytest.mark.parametrize("verb", ["retried", "by hand", "snoozed"])
def test_an_attempt_takes_a_token_again(verb: str) -> None:
    [id] = mail.defer_many([()])
    claim()
    if verb == "by hand":
        settle(id, outcome=Outcome("failed", last_error="no", error={"message": "no"}))
        assert Job.objects.get().retry()
    else:
        settle(id, outcome=AGAIN if verb == "retried" else Outcome("scheduled", delay=0.0, refund=1))
    assert statuses() == {"blocked": 1}
    assert sum(admit_rate_keys(store, [KEY])[0].values()) == 0
    pass_time(3600)
    assert admit() == 1
    assert claim() == [id]


def test_a_released_job_keeps_its_token_and_a_recovered_job_takes_another_token() -> None:
    mail.defer()
    [claimed] = store.claim(queue_names=["mail"], limit=1, worker_id="w")
    store.release([claimed.ref])
    assert statuses() == {"queued": 1}
    claim()
    store.recover(worker_ids=["w"])
    assert statuses() == {"blocked": 1}


def test_a_job_that_changes_its_queue_changes_its_rate() -> None:
    mail.defer()
    claim()
    plain = jobs.noop.defer()
    assert plain.change_queue("mail")
    plain.refresh_from_db()
    assert (plain.status, plain.rate_key, plain.rate_interval, plain.rate_burst) == ("blocked", KEY, 3600.0, 1)
    assert plain.change_queue("other")
    plain.refresh_from_db()
    assert (plain.status, plain.rate_key, plain.rate_interval, plain.rate_burst) == ("queued", None, None, None)


def test_a_job_that_changes_its_queue_keeps_a_rate_of_its_own() -> None:
    own = burst_of_three.defer(7)
    key = own.rate_key
    assert own.change_queue("mail")
    own.refresh_from_db()
    assert (own.status, own.rate_key, own.rate_burst, own.gate) == ("queued", key, 3, None)


def test_a_job_keeps_the_permit_of_its_own_limit_in_its_new_queue() -> None:
    """The job keeps one of two permits while it waits for its rate and while it is queued. A third job waits."""
    first, second, third = free_two.defer_many([("a",)] * 3)
    store.change_queue([first, second, third], "mail")
    found = {job.pk: (job.status, job.gate, job.rate_key) for job in Job.objects.all()}
    assert found == {
        first: ("blocked", "rate", KEY), second: ("blocked", "rate", KEY), third: ("blocked", "limit", KEY),
    }  # fmt: skip
    store.change_queue([first, second, third], "default")
    found = {job.pk: (job.status, job.gate, job.rate_key) for job in Job.objects.all()}
    assert found == {first: ("queued", None, None), second: ("queued", None, None), third: ("blocked", "limit", None)}


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
    assert (job.status, job.limit_key, job.rate_key, job.gate) == ("blocked", None, KEY, "rate")


def test_a_scheduled_or_held_job_waits_on_in_its_new_queue() -> None:
    scheduled = jobs.noop.using(run_after=timedelta(hours=1)).defer()
    waits = jobs.noop.using(after=[jobs.noop.defer()]).defer()
    for job, status in ((scheduled, "scheduled"), (waits, "blocked")):
        for queue, key in (("mail", KEY), ("default", None)):
            job.change_queue(queue)
            job.refresh_from_db()
            assert (job.status, job.rate_key) == (status, key)


# Bad input


@pytest.mark.parametrize("value", ["", "50", "0/s", "20000/s", "1/400d", 5, True, "50/s "])
def test_a_value_that_is_no_rate_of_a_queue_is_refused(value: Any) -> None:
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
def test_a_setting_that_cannot_be_used_is_reported(settings: Any, value: Any) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"rate": value}}}
    [problem] = conf.problems()
    assert problem.startswith("SKIPQUEUE['QUEUES']['mail']['rate'] must be a number of jobs and a time")
    assert problem.endswith(f"or None for a rate that is set in the admin, not {value!r}.")


def test_settings_with_a_rate_are_valid(settings: Any) -> None:
    for value in ("50/s", "3/10s", None):
        settings.SKIPQUEUE = {"QUEUES": {"mail": {"concurrency": 20, "rate": value}}}
        assert not list(conf.problems())
    assert not RateBucket.objects.exists()
