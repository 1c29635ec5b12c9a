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


def add_call(entry: Any) -> Any:
    calls.append(entry)
    return entry


def write(entry: str) -> str:
    Ledger.objects.create(entry=entry)
    return entry


def count_entries() -> dict[str, int]:
    return Counter(Ledger.objects.values_list("entry", flat=True))


def steps_of(deferred_job: Job) -> list[tuple[str, str, Any]]:
    """The name, the kind and the result of each recorded step."""
    steps = JobStep.objects.filter(job_id=deferred_job.pk).order_by("number")
    return list(steps.values_list("name", "kind", "result"))


def run_and_reload(deferred_job: Job, **options: Any) -> Job:
    run_jobs(**options)
    deferred_job.refresh_from_db()
    return deferred_job


# What is recorded


@job(takes_context=True, name="steps.in_order")
def in_order(context: JobContext) -> list[Any]:
    results = [context.step("one", add_call, 1), context.step("two", add_call, entry="two")]
    if calls.count("failed") < 1:
        calls.append("failed")
        raise ValueError("after two steps")
    return [*results, context.step("three", add_call, None), context.step("four", add_call, (1, 2))]


def test_a_later_attempt_gets_the_results_of_the_steps_before() -> None:
    deferred_job = run_and_reload(in_order.defer(), include_scheduled=True)
    assert deferred_job.status == "completed"
    assert calls == [1, "two", "failed", None, (1, 2)]
    assert deferred_job.result == [1, "two", None, [1, 2]]
    assert steps_of(deferred_job) == [
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
    calls.append(context.step("plain", add_call, (1, 2)))
    if len(calls) < 4:
        raise ValueError


def test_each_attempt_gets_an_equal_result_in_the_type_of_the_annotation() -> None:
    run_and_reload(typed.defer(), include_scheduled=True)
    accounts = [call for call in calls if isinstance(call, Account)]
    assert accounts == [Account(7, OPENED)] * 2
    assert calls.count([1, 2]) == 2  # not counted: the (1, 2) that `add_call` itself appends


# Errors for wrong use


def return_set() -> set[int]:
    calls.append("called")
    return {1}


def return_text_for_datetime() -> datetime:
    calls.append("called")
    return "no datetime"  # type: ignore[return-value]


async def async_step() -> None:
    calls.append("called")


# The call, the class and the text of its error, and whether the function of the step has been called.
MISUSES: dict[str, tuple[Callable[[JobContext], Any], type[Exception], str, bool]] = {
    "name twice": (lambda c: (c.step("a", int), c.step("a", int)), InvalidOption, "a name stands for one step", False),
    "no name": (lambda c: c.step("  ", add_call, 1), InvalidOption, "name must be a str", False),
    "no text": (lambda c: c.step(1, add_call, 1), InvalidOption, "name must be a str", False),  # type: ignore[arg-type]
    "long name": (lambda c: c.step("n" * 1001, add_call, 1), InvalidOption, "at most 1000 bytes", False),
    "unknown option": (lambda c: c.step("a", add_call, 1, atomc=True), InvalidOption, "unexpected keyword", False),
    "missing argument": (lambda c: c.step("a", add_call), InvalidOption, "missing a required argument", False),
    "no function": (lambda c: c.step("a", 5), InvalidOption, "needs a function", False),  # type: ignore[arg-type]
    "async def": (lambda c: c.step("a", async_step), InvalidOption, "await context.astep", False),
    "astep": (lambda c: c.astep("a", add_call, 1), InvalidOption, "call context.step", False),
    "not JSON": (lambda c: c.step("a", return_set), InvalidArguments, "result of the step 'a'", True),
    "not of the annotation": (
        lambda c: c.step("a", return_text_for_datetime),
        InvalidArguments,
        "result of the step 'a'",
        True,
    ),
    "too large": (lambda c: c.step("a", lambda: "x" * 2_000_000), InvalidArguments, "MAX_RESULT_BYTES", False),
}


@job(takes_context=True, name="steps.misuse")
def misuse(context: JobContext, name: str) -> None:
    call, *_ = MISUSES[name]
    call(context)


@pytest.mark.parametrize("name", MISUSES)
def test_a_wrong_use_of_a_step_raises_a_clear_error(name: str) -> None:
    _, error_class, error_text, is_called = MISUSES[name]
    misuse.defer(name)
    with pytest.raises(error_class, match=error_text):
        run_jobs(raise_errors=True)
    assert bool(calls) == is_called
    assert not JobStep.objects.exclude(result=0).exists()  # "name twice" records its first step, `int()`


@job(takes_context=True, name="steps.atomic_task", atomic=True)
def atomic_task(context: JobContext) -> None:
    context.step("a", add_call, 1)


def test_an_atomic_task_has_no_steps() -> None:
    atomic_task.defer()
    with pytest.raises(InvalidOption, match="atomic=True: the whole task is one transaction"):
        run_jobs(raise_errors=True)


def test_a_context_without_a_worker_has_no_steps() -> None:
    context = JobContext(1, 1, 1, "default", "", "default")
    with pytest.raises(InvalidOption, match="needs a worker"):
        context.step("a", add_call, 1)


# The first attempt of the task uses the name "a" for a step, and later attempts use it for a sleep.
FIRST_STEP_THEN_SLEEP: list[Callable[[JobContext], Any]] = [
    lambda c: c.step("a", add_call, 1),
    lambda c: c.sleep("a", 0),
]


@job(takes_context=True, name="steps.changed")
def changed(context: JobContext) -> None:
    calls.append("run")
    is_first_run = calls.count("run") == 1
    FIRST_STEP_THEN_SLEEP[0 if is_first_run else 1](context)
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
    run_jobs(raise_errors=False) if atomic else run_jobs(limit=1)
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
    run_and_reload(broken_atomic.defer(), include_scheduled=True)
    assert count_entries() == {"half": 1}


@job(takes_context=True, name="steps.in_transaction")
def in_transaction(context: JobContext) -> None:
    with transaction.atomic():
        context.step("kept", write, "kept")
        if not calls:
            calls.append("failed")
            raise ValueError


def test_a_step_in_a_transaction_of_the_task_is_rolled_back_with_it() -> None:
    run_and_reload(in_transaction.defer(), include_scheduled=True)
    assert count_entries() == {"kept": 1}


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
        with connect() as other_session:
            other_session.execute("DELETE FROM skipqueue_job WHERE id = %s", [context.job_id])

    context.step("write", write_and_go, atomic=True)


@job(takes_context=True, name="steps.defers")
def defers(context: JobContext) -> None:
    def defer_and_fail() -> None:
        in_transaction.defer()
        add_call("deferred")
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
        context.step("a", add_call, "a")
        raise ValueError


def test_a_rolled_back_record_does_not_reset_the_number_of_attempts() -> None:
    deferred_job = run_and_reload(rolled_back.defer(), include_scheduled=True)
    assert (deferred_job.status, deferred_job.attempts, calls) == ("failed", 3, ["a"] * 3)


@pytest.mark.parametrize("name", ["not JSON", "not of the annotation"])
def test_a_step_with_an_unstorable_result_fails_the_job_without_a_retry(name: str) -> None:
    deferred_job = run_and_reload(misuse.defer(name), include_scheduled=True)
    assert (deferred_job.status, deferred_job.attempts, calls) == ("failed", 1, ["called"])


@job(takes_context=True, name="steps.fails_at_each", max_attempts=3)
def fails_at_each(context: JobContext) -> str:
    for number in range(4):
        for earlier_failures in range(2):  # each step fails twice
            if calls.count((number, "failed")) <= earlier_failures:
                calls.append((number, "failed"))
                calls.append((number, context.is_last_attempt))
                raise ValueError(number)
        context.step(f"step {number}", add_call, number)
    return "done"


def test_max_attempts_counts_the_attempts_at_one_step() -> None:
    deferred_job = run_and_reload(fails_at_each.defer(), include_scheduled=True)
    assert deferred_job.status == "completed", deferred_job.last_error  # after eight failures, with three attempts
    assert deferred_job.attempts == 1
    resets = [operation for operation in deferred_job.operations if operation["verb"] == "reset"]
    # each step is recorded by the third attempt at it, which is the first attempt at the next step
    assert [operation["attempts"] for operation in resets] == [3, 3, 3, 3]
    assert [operation["reason"] for operation in resets] == [f"step {number}" for number in range(4)]
    assert list(JobStep.objects.order_by("number").values_list("attempt", flat=True)) == [3, 5, 7, 9]


@job(takes_context=True, name="steps.always_fails", max_attempts=2)
def always_fails(context: JobContext) -> None:
    context.step(f"step {len(calls)}", add_call, 1)
    raise ValueError


def test_max_attempts_in_all_limits_the_attempts_at_all_steps_together(settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_ATTEMPTS_IN_ALL": 6}
    deferred_job = run_and_reload(always_fails.defer(), include_scheduled=True)
    assert deferred_job.status == "failed"
    assert len(calls) == 6


@job(takes_context=True, name="steps.retried", max_attempts=1)
def retried(context: JobContext) -> None:
    context.step("a", add_call, "a")
    if calls.count("broken") < 1:
        calls.append("broken")
        raise ValueError
    context.step("b", add_call, "b")


def test_a_retry_by_hand_goes_on_at_the_failed_step() -> None:
    deferred_job = run_and_reload(retried.defer())
    assert deferred_job.status == "failed"
    assert deferred_job.retry()
    assert run_and_reload(deferred_job).status == "completed"
    assert calls == ["a", "broken", "b"]


# async def


@job(takes_context=True, name="steps.in_async")
async def in_async(context: JobContext) -> list[Any]:
    async def echo(value: str) -> str:
        calls.append(value)
        return value

    results = [await context.astep("a", echo, "a"), await context.astep("b", write, "b", atomic=True)]
    if calls.count("failed") < 1:
        calls.append("failed")
        raise ValueError
    return results


def test_async_tasks_use_astep_and_arun() -> None:
    deferred_job = run_and_reload(in_async.defer(), include_scheduled=True)
    assert deferred_job.result == ["a", "b"]
    assert calls == ["a", "failed"]
    assert count_entries() == {"b": 1}


@job(takes_context=True, name="steps.wrong_in_async")
async def wrong_in_async(context: JobContext, method: str) -> None:
    if method == "step":
        context.step("a", add_call, 1)
    elif method == "wait":
        context.wait("a")
    elif method == "each":
        context.each("a", [1])
    else:
        await context.astep("a", async_step, atomic=True)


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
        results = []
        for number in range(8):
            results.append(context.step(f"atomic {number}", write, number, atomic=True))
            if not KILL_BEFORE and not Ledger.objects.filter(entry=f"killed {number}").exists():
                kill(number)
            context.step(f"plain {number}", note, f"plain {number}")
        return results

    def kill(number):
        from django.db import connections
        other_connection = connections["default"].copy("other")
        with other_connection.cursor() as cursor:  # outside of the transaction of the step
            insert = f"INSERT INTO {Ledger._meta.db_table} (entry, worker, written_at) VALUES (%s, '', now())"
            cursor.execute(insert, [f"killed {number}"])
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kills_before_the_commit", [True, False])
def test_no_step_is_lost_or_repeated_although_a_worker_is_killed_at_each_step(
    runworker: Callable[..., ManagePy], kills_before_the_commit: bool
) -> None:
    runworker("--concurrency", "1", jobs=KILLED.replace("KILL_BEFORE", str(kills_before_the_commit)))
    deferred_job = Job.objects.enqueue("extra.jobs.many", max_attempts=2)
    wait_until(lambda: not Job.objects.unfinished().exists(), "the job has ended")
    deferred_job.refresh_from_db()
    assert deferred_job.status == "completed", deferred_job.last_error
    assert deferred_job.result == list(range(8))
    counts = count_entries()
    assert {counts[f"killed {number}"] for number in range(8)} == {1}
    assert {counts[f"atomic {number}"] for number in range(8)} == {1}
    assert {counts[f"plain {number}"] for number in range(8)} == {1}
    assert JobStep.objects.filter(job_id=deferred_job.pk).count() == 16


def test_a_prune_deletes_the_steps_of_a_job() -> None:
    deferred_job = run_and_reload(in_order.defer(), include_scheduled=True)
    assert JobStep.objects.filter(job_id=deferred_job.pk).count() == 4
    Job.objects.filter(pk=deferred_job.pk).update(finished_at=OPENED)
    assert Store("default").prune() == {"completed": 1}
    assert not JobStep.objects.exists()
