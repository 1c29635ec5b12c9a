"""`context.step`: each step of a job runs once, whenever a worker dies."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue import JobContext, job
from django_skipqueue.exceptions import InvalidArguments, InvalidOption, LeaseLost
from django_skipqueue.models import Job, JobStep
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ...app.models import Ledger
from ...app.sessions import connect
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def note(entry: Any) -> Any:
    calls.append(entry)
    return entry


def write(entry: str) -> str:
    Ledger.objects.create(entry=entry)
    return entry


def entries() -> dict[str, int]:
    return Counter(Ledger.objects.values_list("entry", flat=True))


def steps_of(made: Job) -> list[tuple[str, str, Any]]:
    rows = JobStep.objects.filter(job_id=made.pk).order_by("number")
    return list(rows.values_list("name", "kind", "result"))


def run_one(made: Job, **options: Any) -> Job:
    run_jobs(**options)
    made.refresh_from_db()
    return made


# What is recorded


@job(takes_context=True, name="steps.in_order")
def in_order(context: JobContext) -> list[Any]:
    found = [context.step("one", note, 1), context.step("two", note, entry="two")]
    if calls.count("failed") < 1:
        calls.append("failed")
        raise ValueError("after two steps")
    return [*found, context.step("three", note, None), context.step("four", note, (1, 2))]


def test_a_later_attempt_gets_the_results_of_the_steps_before() -> None:
    made = run_one(in_order.defer(), include_scheduled=True)
    assert made.status == "completed"
    assert calls == [1, "two", "failed", None, (1, 2)]
    assert made.result == [1, "two", None, [1, 2]]
    assert steps_of(made) == [
        ("one", "step", 1),
        ("two", "step", "two"),
        ("three", "step", None),
        ("four", "step", [1, 2]),
    ]
    assert list(JobStep.objects.order_by("number").values_list("attempt", flat=True)) == [1, 1, 2, 2]


@dataclass(frozen=True)
class Account:
    number: int
    opened: datetime


OPENED = datetime(2026, 1, 2, tzinfo=UTC)


def opened(number: int) -> Account:
    return Account(number, OPENED)


@job(takes_context=True, name="steps.typed")
def typed(context: JobContext) -> None:
    calls.append(context.step("account", opened, 7))
    calls.append(context.step("plain", note, (1, 2)))
    if len(calls) < 4:
        raise ValueError


def test_each_attempt_gets_an_equal_result_in_the_type_of_the_annotation() -> None:
    run_one(typed.defer(), include_scheduled=True)
    accounts = [call for call in calls if isinstance(call, Account)]
    assert accounts == [Account(7, OPENED)] * 2
    assert calls.count([1, 2]) == 2  # not counted: the (1, 2) that `note` itself appends


# Errors for wrong use


def wrong() -> set[int]:
    calls.append("called")
    return {1}


def dated() -> datetime:
    calls.append("called")
    return "no datetime"  # type: ignore[return-value]


async def later() -> None:
    calls.append("called")


MISUSES: dict[str, tuple[Callable[[JobContext], Any], type[Exception], str, bool]] = {
    "name twice": (lambda c: (c.step("a", int), c.step("a", int)), InvalidOption, "a name stands for one step", False),
    "no name": (lambda c: c.step("  ", note, 1), InvalidOption, "name must be a str", False),
    "no text": (lambda c: c.step(1, note, 1), InvalidOption, "name must be a str", False),  # type: ignore[arg-type]
    "long name": (lambda c: c.step("n" * 1001, note, 1), InvalidOption, "at most 1000 bytes", False),
    "unknown option": (lambda c: c.step("a", note, 1, atomc=True), InvalidOption, "unexpected keyword", False),
    "missing argument": (lambda c: c.step("a", note), InvalidOption, "missing a required argument", False),
    "no function": (lambda c: c.step("a", 5), InvalidOption, "needs a function", False),  # type: ignore[arg-type]
    "async def": (lambda c: c.step("a", later), InvalidOption, "await context.astep", False),
    "astep": (lambda c: c.astep("a", note, 1), InvalidOption, "call context.step", False),
    "not JSON": (lambda c: c.step("a", wrong), InvalidArguments, "result of the step 'a'", True),
    "not of the annotation": (lambda c: c.step("a", dated), InvalidArguments, "result of the step 'a'", True),
    "too large": (lambda c: c.step("a", lambda: "x" * 2_000_000), InvalidArguments, "MAX_RESULT_BYTES", False),
}


@job(takes_context=True, name="steps.misuse")
def misuse(context: JobContext, name: str) -> None:
    MISUSES[name][0](context)


@pytest.mark.parametrize("name", MISUSES)
def test_a_wrong_use_of_a_step_raises_a_clear_error(name: str) -> None:
    _, kind, text, is_called = MISUSES[name]
    misuse.defer(name)
    with pytest.raises(kind, match=text):
        run_jobs(raise_errors=True)
    assert bool(calls) == is_called
    assert not JobStep.objects.exclude(result=0).exists()


@job(takes_context=True, name="steps.atomic_task", atomic=True)
def atomic_task(context: JobContext) -> None:
    context.step("a", note, 1)


def test_an_atomic_task_has_no_steps() -> None:
    atomic_task.defer()
    with pytest.raises(InvalidOption, match="atomic=True: the whole task is one transaction"):
        run_jobs(raise_errors=True)


def test_a_context_without_a_worker_has_no_steps() -> None:
    context = JobContext(1, 1, 1, "default", "", "default")
    with pytest.raises(InvalidOption, match="needs a worker"):
        context.step("a", note, 1)


KINDS: list[Callable[[JobContext], Any]] = [lambda c: c.step("a", note, 1), lambda c: c.sleep("a", 0)]


@job(takes_context=True, name="steps.changed")
def changed(context: JobContext) -> None:
    calls.append("run")
    KINDS[min(len([call for call in calls if call == "run"]) - 1, 1)](context)
    if len(calls) < 3:
        raise ValueError


def test_a_recorded_name_cannot_be_used_by_another_method() -> None:
    changed.defer()
    run_jobs()
    with pytest.raises(InvalidOption, match="is recorded for this job by step, and the task now uses it for sleep"):
        run_jobs(include_scheduled=True, raise_errors=True)


# Only the holder of the lease can record


@job(takes_context=True, name="steps.stolen")
def stolen(context: JobContext, atomic: bool) -> None:
    def write_and_lose() -> None:
        Ledger.objects.create(entry="stolen")
        with connection.cursor() as cursor:  # as if another worker had recovered the job
            cursor.execute("UPDATE skipqueue_job SET lease = lease + 1 WHERE id = %s", [context.job_id])

    try:
        context.step("write", write_and_lose, atomic=atomic)
    except LeaseLost:
        calls.append("lost")
        raise


@pytest.mark.parametrize("atomic", [True, False])
def test_a_step_is_not_recorded_if_the_lease_is_lost(atomic: bool) -> None:
    stolen.defer(atomic)
    run_jobs(limit=1) if not atomic else run_jobs(raise_errors=False)
    assert "lost" in calls
    assert not JobStep.objects.exists()
    assert Ledger.objects.count() == (0 if atomic else calls.count("lost"))


@job(takes_context=True, name="steps.broken_atomic")
def broken_atomic(context: JobContext) -> None:
    def write_and_fail() -> None:
        write("half")
        if not calls:
            calls.append("failed")
            raise ValueError

    context.step("write", write_and_fail, atomic=True)


def test_a_failed_atomic_step_is_rolled_back() -> None:
    run_one(broken_atomic.defer(), include_scheduled=True)
    assert entries() == {"half": 1}


@job(takes_context=True, name="steps.in_transaction")
def in_transaction(context: JobContext) -> None:
    with transaction.atomic():
        context.step("kept", write, "kept")
        if not calls:
            calls.append("failed")
            raise ValueError


def test_a_step_in_a_transaction_of_the_task_is_rolled_back_with_it() -> None:
    run_one(in_transaction.defer(), include_scheduled=True)
    assert entries() == {"kept": 1}


def test_a_step_of_a_deleted_job_is_not_recorded() -> None:
    gone.defer()
    with pytest.raises(LeaseLost):
        run_jobs(raise_errors=True)
    assert not JobStep.objects.exists()
    assert not Ledger.objects.exists()


@job(takes_context=True, name="steps.gone")
def gone(context: JobContext) -> None:
    def write_and_go() -> None:
        write("gone")
        with connect() as other:
            other.execute("DELETE FROM skipqueue_job WHERE id = %s", [context.job_id])

    context.step("write", write_and_go, atomic=True)


@job(takes_context=True, name="steps.defers")
def defers(context: JobContext) -> None:
    def defer_and_fail() -> None:
        in_transaction.defer()
        note("deferred")
        if calls.count("deferred") < 2:
            raise ValueError

    context.step("defer", defer_and_fail, atomic=True)


def test_jobs_deferred_in_an_atomic_step_are_rolled_back_with_it() -> None:
    calls.append("failed")
    defers.defer()
    run_jobs(include_scheduled=True)
    assert calls.count("deferred") == 2
    assert Job.objects.filter(task="steps.in_transaction").count() == 1


# The attempts


@job(takes_context=True, name="steps.rolled_back", max_attempts=3)
def rolled_back(context: JobContext) -> None:
    with transaction.atomic():
        context.step("a", note, "a")
        raise ValueError


def test_a_rolled_back_record_does_not_reset_the_number_of_attempts() -> None:
    made = run_one(rolled_back.defer(), include_scheduled=True)
    assert (made.status, made.attempts, calls) == ("failed", 3, ["a"] * 3)


@pytest.mark.parametrize("name", ["not JSON", "not of the annotation"])
def test_a_step_with_an_unstorable_result_fails_the_job_without_a_retry(name: str) -> None:
    made = run_one(misuse.defer(name), include_scheduled=True)
    assert (made.status, made.attempts, calls) == ("failed", 1, ["called"])


@job(takes_context=True, name="steps.fails_at_each", max_attempts=3)
def fails_at_each(context: JobContext) -> str:
    for number in range(4):
        for times in range(2):
            if calls.count((number, "failed")) <= times:
                calls.append((number, "failed"))
                calls.append((number, context.is_last_attempt))
                raise ValueError(number)
        context.step(f"step {number}", note, number)
    return "done"


def test_max_attempts_counts_the_attempts_at_one_step() -> None:
    made = run_one(fails_at_each.defer(), include_scheduled=True)
    assert made.status == "completed", made.last_error  # after eight failures, with three attempts
    assert made.attempts == 1
    steps = [each for each in made.operations if each["verb"] == "reset"]
    assert [each["attempts"] for each in steps] == [3, 3, 3, 3]
    assert [each["reason"] for each in steps] == [f"step {number}" for number in range(4)]
    assert list(JobStep.objects.order_by("number").values_list("attempt", flat=True)) == [3, 5, 7, 9]


@job(takes_context=True, name="steps.always_fails", max_attempts=2)
def always_fails(context: JobContext) -> None:
    context.step(f"step {len(calls)}", note, 1)
    raise ValueError


def test_max_attempts_in_all_limits_the_attempts_at_all_steps_together(settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_ATTEMPTS_IN_ALL": 6}
    made = run_one(always_fails.defer(), include_scheduled=True)
    assert made.status == "failed"
    assert len(calls) == 6


@job(takes_context=True, name="steps.retried", max_attempts=1)
def retried(context: JobContext) -> None:
    context.step("a", note, "a")
    if calls.count("broken") < 1:
        calls.append("broken")
        raise ValueError
    context.step("b", note, "b")


def test_a_retry_by_hand_goes_on_at_the_failed_step() -> None:
    made = run_one(retried.defer())
    assert made.status == "failed"
    assert made.retry()
    assert run_one(made).status == "completed"
    assert calls == ["a", "broken", "b"]


# async def


@job(takes_context=True, name="steps.in_async")
async def in_async(context: JobContext) -> list[Any]:
    async def echo(value: str) -> str:
        calls.append(value)
        return value

    found = [await context.astep("a", echo, "a"), await context.astep("b", write, "b", atomic=True)]
    if calls.count("failed") < 1:
        calls.append("failed")
        raise ValueError
    return found


def test_async_tasks_use_astep_and_arun() -> None:
    made = run_one(in_async.defer(), include_scheduled=True)
    assert made.result == ["a", "b"]
    assert calls == ["a", "failed"]
    assert entries() == {"b": 1}


@job(takes_context=True, name="steps.wrong_in_async")
async def wrong_in_async(context: JobContext, method: str) -> None:
    if method == "step":
        context.step("a", note, 1)
    elif method == "wait":
        context.wait("a")
    elif method == "each":
        context.each("a", [1])
    else:
        await context.astep("a", later, atomic=True)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("step", "await context.astep"),
        ("wait", "await context.await_signal"),
        ("each", "async for … in context.aeach"),
        ("atomic", "cannot be atomic"),
    ],
)
def test_the_error_for_a_sync_method_in_an_async_task_names_the_async_method(method: str, text: str) -> None:
    wrong_in_async.defer(method)
    with pytest.raises(InvalidOption, match=text):
        run_jobs(raise_errors=True)


# Real workers, really killed

KILLED = """
    import os, signal
    from django_skipqueue import job
    from tests.app.models import Ledger

    def note(entry):
        Ledger.objects.create(entry=entry)
        return entry

    @job(takes_context=True, max_attempts=2)
    def many(context):
        def write(number):
            Ledger.objects.create(entry=f"atomic {number}")
            if KILL_BEFORE and not Ledger.objects.filter(entry=f"killed {number}").exists():
                kill(number)
            return number
        found = []
        for number in range(8):
            found.append(context.step(f"atomic {number}", write, number, atomic=True))
            if not KILL_BEFORE and not Ledger.objects.filter(entry=f"killed {number}").exists():
                kill(number)
            context.step(f"plain {number}", note, f"plain {number}")
        return found

    def kill(number):
        from django.db import connections
        other = connections["default"].copy("other")
        with other.cursor() as cursor:  # outside of the transaction of the step
            insert = f"INSERT INTO {Ledger._meta.db_table} (entry, worker, written_at) VALUES (%s, '', now())"
            cursor.execute(insert, [f"killed {number}"])
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("before", [True, False])
def test_no_step_is_lost_or_repeated_although_a_worker_is_killed_at_each_step(
    runworker: Callable[..., ManagePy], before: bool
) -> None:
    runworker("--concurrency", "1", jobs=KILLED.replace("KILL_BEFORE", str(before)))
    made = Job.objects.enqueue("extra.jobs.many", max_attempts=2)
    wait_until(lambda: not Job.objects.unfinished().exists(), "the job has ended")
    made.refresh_from_db()
    assert made.status == "completed", made.last_error
    assert made.result == list(range(8))
    counts = entries()
    assert {counts[f"killed {number}"] for number in range(8)} == {1}
    assert {counts[f"atomic {number}"] for number in range(8)} == {1}
    assert {counts[f"plain {number}"] for number in range(8)} == {1}
    assert JobStep.objects.filter(job_id=made.pk).count() == 16


def test_a_prune_deletes_the_steps_of_a_job() -> None:
    made = run_one(in_order.defer(), include_scheduled=True)
    assert JobStep.objects.filter(job_id=made.pk).count() == 4
    Job.objects.filter(pk=made.pk).update(finished_at=OPENED)
    assert Store("default").prune() == {"completed": 1}
    assert not JobStep.objects.exists()
