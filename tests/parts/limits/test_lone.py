"""A lone job, the only job with a limit that a transaction enqueues, is admitted at once if a permit is free."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue import job, limit, rate
from django_skipqueue.events.events import JobsAdmitted, JobsDeferred
from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.limits import admit as limits
from django_skipqueue.parts.limits import queues as limit_queues
from django_skipqueue.parts.limits.admit import ENQUEUE_AND_ADMIT
from django_skipqueue.queue import enqueue
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.parameters import unindented
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall, JobSpec

from ...app import jobs
from ...app.limits.jobs import halting_sequence, two_per_account
from ...app.rows import make_job
from ...app.sessions import connect
from ...harness.processes import statuses

DeferFunction = Callable[..., Any]


@job(fair_by="tenant")
def fair(tenant: str) -> None:
    """Do nothing."""


@job(concurrency=limit(2, by="account"), rate=rate("1/h", by="account"))
def limited_and_rated(account: str) -> None:
    """Do nothing."""


pytestmark = pytest.mark.django_db(transaction=True)


def defer_alone(task: Any, *args: Any) -> Any:
    return task.defer(*args)


def defer_in_transaction(task: Any, *args: Any) -> Any:
    with transaction.atomic():
        return task.defer(*args)


@pytest.fixture(params=[defer_alone, defer_in_transaction])
def defer(request: pytest.FixtureRequest) -> DeferFunction:
    """A function that defers in one message, or in a transaction of the caller."""
    defer_function: DeferFunction = request.param
    return defer_function


@pytest.fixture
def statement_for_several_jobs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the statement for several jobs fail."""
    monkeypatch.setattr(limits, "ADMIT_BY_KEY", "SELECT 1 / 0")


@pytest.fixture
def payloads_heard() -> Iterator[Callable[[], list[str]]]:
    """Returns the payloads of the next notifications, until there is one on the channel `end`."""
    with connect() as listener:
        listener.execute("LISTEN skipqueue; LISTEN skipqueue_supervisors; LISTEN test_end")

        def until_end() -> list[str]:
            listener.execute("NOTIFY test_end")
            payloads = []
            for notify in listener.notifies(timeout=5):
                if notify.channel == "test_end":
                    break
                payloads.append(notify.payload)
            return payloads

        yield until_end


def status(job: Any) -> str:
    return str(Job.objects.get(pk=job.pk).status)


@pytest.mark.usefixtures("statement_for_several_jobs_fails")
def test_a_lone_job_is_queued_and_the_workers_are_notified_once(
    defer: DeferFunction, payloads_heard: Callable[[], list[str]]
) -> None:
    assert status(defer(two_per_account, "a")) == "queued"
    assert payloads_heard() == ["default"]


@pytest.mark.usefixtures("statement_for_several_jobs_fails")
def test_outside_of_a_transaction_a_lone_job_takes_one_message() -> None:
    messages: list[str] = []

    def note_statement(execute: Any, statement: str, *rest: Any) -> Any:
        messages.append(statement)
        return execute(statement, *rest)

    with connection.execute_wrapper(note_statement):
        assert two_per_account.defer("a").status == "queued"
    assert messages == [unindented(ENQUEUE_AND_ADMIT)]


def test_the_events_say_that_a_lone_job_was_deferred_and_admitted() -> None:
    events: list[Any] = []
    call = EncodedCall("[]", "{}", {"limit_key": "k", "limit_kind": "concurrency", "capacity": 1})
    inserted = Store("default", send=events.append).enqueue(JobSpec("a.task", "a"), call)
    assert inserted
    assert inserted.status == "queued"
    assert events == [JobsDeferred("default", "a.task", "a", [inserted.id]), JobsAdmitted("default", {"a": 1})]


def test_a_job_beyond_the_limit_waits(defer: DeferFunction, payloads_heard: Callable[[], list[str]]) -> None:
    for _ in range(3):
        third = defer(two_per_account, "a")
    assert third.status == status(third) == "blocked"
    assert statuses() == {"queued": 2, "blocked": 1}
    assert payloads_heard() == ["default", "default"]


def test_a_lone_job_does_not_overtake_a_waiting_job(defer: DeferFunction) -> None:
    columns = halting_sequence.encoded(("a",), {}).columns
    waiting = make_job("blocked", limit_key=columns["limit_key"], limit_kind=columns["limit_kind"], capacity=1)
    job = defer(halting_sequence, "a")
    assert (status(waiting), status(job)) == ("queued", "blocked")


def test_a_sequence_that_has_halted_stays_halted(defer: DeferFunction) -> None:
    columns = halting_sequence.encoded(("a",), {}).columns
    make_job("failed", limit_key=columns["limit_key"], limit_kind="halting", capacity=1)
    assert status(defer(halting_sequence, "a")) == "blocked"


def test_a_job_of_a_sequence_that_waits_to_retry_holds_the_key(defer: DeferFunction) -> None:
    columns = halting_sequence.encoded(("a",), {}).columns
    make_job("scheduled", limit_key=columns["limit_key"], limit_kind="halting", capacity=1, attempts=1)
    assert status(defer(halting_sequence, "a")) == "blocked"


def test_a_job_that_waits_for_its_rate_holds_its_permit(defer: DeferFunction) -> None:
    columns = halting_sequence.encoded(("a",), {}).columns
    make_job(
        "blocked",
        limit_key=columns["limit_key"],
        limit_kind=columns["limit_kind"],
        capacity=1,
        gate="rate",
    )
    assert status(defer(halting_sequence, "a")) == "blocked"


def test_a_job_of_a_fair_key_is_queued_if_fewer_than_two_are_queued(defer: DeferFunction) -> None:
    capacity = fair.encoded(("a",), {}).columns["capacity"]
    assert capacity
    deferred = [defer(fair, "a") for _ in range(capacity + 1)]
    assert [status(job) for job in deferred] == ["queued"] * capacity + ["blocked"]


@pytest.mark.usefixtures("statement_for_several_jobs_fails")
def test_for_each_running_job_of_a_fair_key_another_job_is_queued(defer: DeferFunction) -> None:
    columns = fair.encoded(("a",), {}).columns
    capacity = columns["capacity"]
    assert capacity
    for _ in range(capacity + 1):
        make_job("running", limit_key=columns["limit_key"], limit_kind="fair", capacity=capacity)
    assert [status(defer(fair, "a")) for _ in range(capacity + 1)] == ["queued"] * (capacity + 1)


@pytest.mark.parametrize(("new_limit", "expected"), [(1, "blocked"), (3, "queued"), (None, "queued")])
def test_a_changed_limit_of_the_queue_decides_whether_the_job_is_queued(
    defer: DeferFunction, new_limit: int | None, expected: str, settings: Any
) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"default": {"concurrency": 2 if new_limit != 3 else 1}}}
    for _ in range(1 if new_limit == 1 else 2):
        make_job("running", limit_key="queue:default", limit_kind="concurrency", capacity=2)
    Queue.limit("default", new_limit)
    assert status(defer(jobs.noop)) == expected


@pytest.mark.usefixtures("statement_for_several_jobs_fails")
def test_a_queue_whose_limit_was_removed_admits_at_once(defer: DeferFunction, settings: Any) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"default": {"concurrency": 1}}}
    make_job("running", limit_key="queue:default", limit_kind="concurrency", capacity=1)
    with connection.cursor() as cursor:
        cursor.execute(limit_queues.LIMIT_QUEUE, {"name": "default", "concurrency": 0})
    assert status(defer(jobs.noop)) == "queued"


def test_a_key_that_another_transaction_has_locked_is_left_to_the_supervisors(
    defer: DeferFunction, payloads_heard: Callable[[], list[str]]
) -> None:
    with connect(autocommit=False) as other_session:
        key = two_per_account.encoded(("a",), {}).columns["limit_key"]
        other_session.execute(limits.LOCK_KEY, {"key": key})
        job = defer(two_per_account, "a")
        assert payloads_heard() == [f",limit {key}"]
    assert job.status == status(job) == "blocked"


def test_permits_are_counted_by_a_statement_after_the_lock() -> None:
    """A single statement that locks and counts would not see what the lock's previous holder has just committed."""
    assert "pg_try_advisory_xact_lock" not in limits.ADMIT_LONE
    message = ENQUEUE_AND_ADMIT
    assert message.index("pg_try_advisory_xact_lock") < message.rindex(";") < message.index("number < limited.permits")


def test_at_another_isolation_level_a_lone_job_is_left_to_the_supervisors(
    defer: DeferFunction, payloads_heard: Callable[[], list[str]]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
    try:
        assert status(defer(two_per_account, "a")) == "blocked"
    finally:
        connection.close()
    assert payloads_heard() == [f",limit {two_per_account.encoded(('a',), {}).columns.get('limit_key')}"]


def test_a_lone_job_does_not_wait_for_the_lock_of_another_transaction() -> None:
    with connect(autocommit=False) as other_session, transaction.atomic():
        transaction.on_commit(lambda: other_session.execute("SELECT FROM skipqueue_job FOR UPDATE") and None)
        job = two_per_account.defer("a")
    assert status(job) == "blocked"
    assert sweep_gates(Store("default"))
    assert statuses() == {"queued": 1}


def test_two_jobs_of_a_transaction_are_admitted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "admit_lone", None)
    with transaction.atomic():
        two_per_account.defer("a")
        two_per_account.defer("a")
    with transaction.atomic():
        two_per_account.defer("b")
        two_per_account.defer("c")
    assert statuses() == {"queued": 4}


def test_a_failed_admission_keeps_the_job_for_the_supervisors(
    payloads_heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing_statement = ENQUEUE_AND_ADMIT.replace("WITH chosen", "SELECT 1 / 0; WITH chosen")
    monkeypatch.setattr(limits.LimitGate, "enqueue_alone", failing_statement)
    monkeypatch.setattr(limits, "ADMIT_BY_KEY", "SELECT 1 / 0")
    job = two_per_account.defer("a")
    assert job.status == status(job) == "blocked"
    assert payloads_heard() == [",gates"]
    assert "division by zero" in caplog.text


def test_a_job_is_admitted_even_if_the_statement_for_lone_jobs_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_statement = ENQUEUE_AND_ADMIT.replace("WITH chosen", "SELECT 1 / 0; WITH chosen")
    monkeypatch.setattr(limits.LimitGate, "enqueue_alone", failing_statement)
    assert status(two_per_account.defer("a")) == "queued"
    assert Job.objects.count() == 1


def test_a_job_that_waits_for_another_job_is_not_admitted(defer: DeferFunction) -> None:
    predecessor = jobs.noop.defer()
    assert status(defer(two_per_account.using(after=[predecessor]), "a")) == "blocked"


def test_a_job_with_a_limit_and_a_rate_waits_for_its_rate_with_its_permit(defer: DeferFunction) -> None:
    first, second = (defer(limited_and_rated, "a") for _ in range(2))
    assert [status(first), status(second)] == ["queued", "blocked"]
    assert Job.objects.get(pk=first.pk).gate is None
    assert Job.objects.get(pk=second.pk).gate == "rate"


def test_a_job_of_a_fair_key_becomes_due_when_it_is_admitted() -> None:
    deferred = Job.objects.get(pk=defer_in_transaction(fair, "a").pk)
    assert deferred.run_after > deferred.enqueued_at


def test_a_job_is_not_admitted_at_its_insert_if_a_gate_without_keys_reads_its_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enqueue, "WAITING_BY", {"batch_id"})  # as if a gate decided by this column
    monkeypatch.setattr(limits.LimitGate, "enqueue_alone", "SELECT 1 / 0")
    call = EncodedCall("[]", "{}", {"limit_key": "a", "limit_kind": "concurrency", "capacity": 1})
    enqueued = Store("default").enqueue(JobSpec("tests.missing", columns={"batch_id": None}), call)
    assert enqueued is not None
    assert Job.objects.get(pk=enqueued.id).status == "queued"
