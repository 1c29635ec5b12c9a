"""`context.run` and `context.run_all`: children are deferred once, and their parent takes up no slot meanwhile."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue import Batch, Discard, JobContext, by, job
from django_skipqueue.exceptions import ChildFailed, InvalidOption
from django_skipqueue.models import Dependency, Job, JobChild, JobStep
from django_skipqueue.parts.steps import children
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.by_hand import run, run_attempt

from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")
calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def reload(stale_job: Job) -> Job:
    stale_job.refresh_from_db()
    return stale_job


@job(name="steps.double", max_attempts=1)
def double(number: int) -> int:
    calls.append(number)
    if number < 0:
        raise ValueError(number)
    if number == 0:
        raise Discard("zero")
    return 2 * number


@job(name="steps.dated")
def return_day(day: date) -> date:
    return day


@job(takes_context=True, name="steps.parent")
def parent(context: JobContext, numbers: list[int]) -> Any:
    calls.append("parent")
    results = context.run_all("doubles", [double.s(number) for number in numbers])
    if calls.count("failed") < 1:
        calls.append("failed")
        raise ValueError
    return results


def test_run_all_returns_the_results_of_the_children_in_the_order_of_the_calls() -> None:
    parent_job = parent.defer([3, 1, 2])
    run_jobs(include_scheduled=True)
    assert (reload(parent_job).status, parent_job.result) == ("completed", [6, 2, 4])
    # the parent begins three times: to defer the children, to fail after they have ended, and to complete
    assert Counter(calls) == {"parent": 3, 3: 1, 1: 1, 2: 1, "failed": 1}
    assert list(JobChild.objects.values_list("name", "position")) == [("doubles", 1), ("doubles", 2), ("doubles", 3)]
    assert not Dependency.objects.exists()


def test_a_parent_is_blocked_until_its_children_are_finished() -> None:
    parent_job = parent.defer([1])
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    assert claimed_parent.status == "blocked"
    assert (reload(parent_job).status, parent_job.gate, parent_job.attempts) == ("blocked", "held", 0)


def test_a_parent_without_calls_goes_on_at_once() -> None:
    calls.append("failed")
    parent_job = parent.defer([])
    run_jobs()
    assert (reload(parent_job).status, parent_job.result) == ("completed", [])


@job(takes_context=True, name="steps.one")
def parent_of_one(context: JobContext) -> None:
    calls.append(context.run("day", return_day.s(date(2026, 5, 4))))


def test_run_returns_the_result_of_one_child_in_the_type_of_its_annotation() -> None:
    parent_of_one.defer()
    run_jobs()
    assert calls == [date(2026, 5, 4)]


@job(takes_context=True, name="steps.catches")
def catches(context: JobContext, numbers: list[int]) -> Any:
    try:
        return context.run_all("doubles", [double.s(number) for number in numbers])
    except ChildFailed as error:
        calls.append("caught")
        if calls.count("caught") < 2:
            raise ValueError("again") from error
        return [error.job_id, error.error, len(error.job_ids)]


@pytest.mark.parametrize(("number", "error_text"), [(-1, "ValueError: -1"), (0, "zero")])
def test_a_failed_child_raises_the_same_error_in_each_attempt_of_its_parent(number: int, error_text: str) -> None:
    parent_job = catches.defer([1, number])
    run_jobs()
    child = Job.objects.get(task="steps.double", args=[number])
    child.retry()  # this changes nothing, because the parent has recorded the failure
    run_jobs(include_scheduled=True)
    assert (reload(parent_job).status, parent_job.result) == ("completed", [child.pk, error_text, 1])


def test_a_parent_fails_with_its_child_and_succeeds_when_both_are_retried() -> None:
    parent_job = parent.defer([-1])
    run_jobs()
    assert reload(parent_job).status == "failed"
    assert parent_job.attempts == 1
    assert "ChildFailed" in parent_job.last_error
    assert "ValueError: -1" in parent_job.last_error
    child = Job.objects.get(task="steps.double")
    Job.objects.filter(pk=child.pk).update(args=[4])  # with this number, the child completes
    assert child.retry()
    assert parent_job.retry()
    run_jobs(include_scheduled=True)
    assert (reload(parent_job).status, parent_job.result) == ("completed", [8])


@job(takes_context=True, name="steps.in_batch")
def in_batch(context: JobContext) -> Any:
    return context.run_all("doubles", [double.s(1), double.s(2)])


def test_results_of_children_that_are_too_large_for_a_row_fail_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LARGEST_JSON", 10)
    parent_job = in_batch.defer()
    run_jobs(include_scheduled=True)
    assert reload(parent_job).status == "failed"
    assert "The results of the children" in parent_job.last_error


def test_children_join_the_batch_of_their_parent() -> None:
    with Batch(on_success=double.s(100)) as batch:
        parent_job = in_batch.defer()
    run_jobs()
    assert reload(parent_job).result == [2, 4]
    assert batch.progress().total == 3
    assert calls[-1] == 100
    assert set(Job.objects.filter(task="steps.double").values_list("batch_id", flat=True)) == {batch.id}


def test_a_callback_of_a_batch_may_have_children() -> None:
    with Batch(on_success=in_batch.s()):
        double.defer(7)
    run_jobs()
    assert Job.objects.get(task="steps.in_batch").result == [2, 4]


def test_cancelling_a_parent_discards_the_children_that_have_not_begun() -> None:
    parent_job = in_batch.defer()
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    [running_child] = Job.objects.claim(queue_names=["default"], worker_id="w")
    assert parent_job.cancel()
    assert statuses() == {"discarded": 2, "running": 1}
    run(running_child)
    assert reload(running_child).status == "completed"


def test_a_retry_of_a_cancelled_parent_finds_its_children_discarded() -> None:
    parent_job = in_batch.defer()
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    assert parent_job.cancel()
    assert statuses() == {"discarded": 3}
    assert parent_job.retry()
    run_jobs()
    assert reload(parent_job).status == "failed"
    assert "did not complete" in parent_job.last_error


def test_a_parent_that_is_retried_while_a_child_still_runs_waits_for_the_child() -> None:
    parent_job = in_batch.defer()
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    [running_child, other_child] = Job.objects.claim(queue_names=["default"], worker_id="w", limit=2)
    assert parent_job.cancel()
    assert parent_job.retry()
    run_jobs()
    assert reload(parent_job).status == "blocked"
    run(running_child)
    run(other_child)
    run_jobs()
    assert (reload(parent_job).status, parent_job.result) == ("completed", [2, 4])


def test_a_rolled_back_cancel_of_a_parent_does_not_discard_its_children() -> None:
    parent_job = in_batch.defer()
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    with transaction.atomic():
        assert parent_job.cancel()
        transaction.set_rollback(True)
    assert statuses() == {"blocked": 1, "queued": 2}


def test_a_child_is_not_pruned_before_its_parent_has_recorded_its_result(settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    parent_job = in_batch.defer()
    for _ in range(3):
        [claimed_job] = Job.objects.claim(queue_names=["default"], worker_id="w")
        run(claimed_job)
    assert statuses() == {"queued": 1, "completed": 2}
    assert store.prune() == {}
    run_jobs()
    assert reload(parent_job).result == [2, 4]
    assert store.prune() == {"completed": 3}
    assert not JobChild.objects.exists()


def test_a_parent_that_is_retried_before_its_retried_child_has_ended_waits_for_it() -> None:
    parent_job = parent.defer([-1])
    run_jobs()
    assert reload(parent_job).status == "failed"
    child_jobs = Job.objects.filter(task="steps.double")
    child_jobs.update(args=[4])  # with this number, the child completes
    assert parent_job.retry()
    assert child_jobs.retry() == 1
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    assert claimed_parent.pk == parent_job.pk
    run(claimed_parent)
    assert (reload(parent_job).status, parent_job.gate) == ("blocked", "held")
    run_jobs(include_scheduled=True)
    assert (reload(parent_job).status, parent_job.result) == ("completed", [8])
    assert not Dependency.objects.exists()


@job(takes_context=True, name="steps.itself", unique_key="steps-itself")
def itself(context: JobContext) -> None:
    context.run("again", itself.s())


def test_a_step_cannot_wait_for_its_own_job() -> None:
    itself.defer()
    with pytest.raises(InvalidOption, match="would wait for its own job"):
        run_jobs(raise_errors=True)
    assert not JobChild.objects.exists()


@job(name="steps.shared", unique_key="steps-shared")
def shared() -> int:
    return 7


@job(takes_context=True, name="steps.twice_the_same_child")
def twice_the_same_child(context: JobContext) -> Any:
    return context.run_all("both", [shared.s(), shared.s()])


def test_two_calls_with_the_same_unique_key_make_one_child() -> None:
    parent_job = twice_the_same_child.defer()
    run_jobs()
    assert (reload(parent_job).status, parent_job.result) == ("completed", [7, 7])
    assert Job.objects.filter(task="steps.shared").count() == 1


@job(takes_context=True, name="steps.prunes")
def prunes(context: JobContext) -> None:
    context.run("child", double.s(1))


def test_no_rows_are_left_of_a_parent_that_is_pruned_while_its_child_runs(settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"discarded": 0, "completed": 0}}
    parent_job = prunes.defer()
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    [running_child] = Job.objects.claim(queue_names=["default"], worker_id="w")
    assert parent_job.cancel()
    assert store.prune() == {"discarded": 1}
    run(running_child)
    store.admit()
    assert store.prune() == {"completed": 1}
    for model in (Job, JobStep, JobChild, Dependency):
        assert not model._base_manager.exists(), model


def test_a_child_that_was_deleted_counts_as_failed() -> None:
    parent_job = parent.defer([1])
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    Job.objects.filter(task="steps.double").delete()
    run_jobs()
    assert reload(parent_job).status == "failed"
    assert "was deleted" in parent_job.last_error


def test_a_recovered_parent_waits_for_the_same_children() -> None:
    parent_job = in_batch.defer()
    [claimed_parent] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    run_attempt(Executor(worker="w", database="default"), claimed_parent)
    assert store.recover(worker_ids=["w"])  # the worker died before the settle
    run_jobs()
    assert (reload(parent_job).status, parent_job.result) == ("completed", [2, 4])
    assert Job.objects.filter(task="steps.double").count() == 2


@job(takes_context=True, name="steps.no_call")
def no_call(context: JobContext, kind: str) -> None:
    if kind == "no call":
        context.run("a", 5)  # type: ignore[arg-type]
    with transaction.atomic():
        context.run("a", double.s(1))


@pytest.mark.parametrize("kind", ["no call", "transaction"])
def test_run_refuses_values_that_are_no_calls(kind: str) -> None:
    no_call.defer(kind)
    with pytest.raises(InvalidOption):
        run_jobs(raise_errors=True)
    assert not JobStep.objects.exists()


@job(takes_context=True, name="steps.many")
def many(context: JobContext, number: int) -> int:
    return sum(context.run_all("all", [double.s(child_number) for child_number in range(1, number + 1)]))


def test_a_step_can_have_ten_thousand_children() -> None:
    parent_job = many.defer(10_000)
    [claimed_parent] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_parent)
    assert Job.objects.filter(task="steps.double", status="queued").count() == 10_000
    Job.objects.filter(task="steps.double").update(
        status="completed", result=1, finished_at=parent_job.enqueued_at, lease=1
    )
    while store.admit().has_changed_jobs:
        pass
    run_jobs()
    assert reload(parent_job).result == 10_000


KILLED = """
    import os, signal
    from django_skipqueue import job
    from tests.app.models import Ledger

    def kill_once(entry):
        if not Ledger.objects.filter(entry=f"killed {entry}").exists():
            Ledger.objects.create(entry=f"killed {entry}")
            os.kill(os.getpid(), signal.SIGKILL)

    @job
    def child(number):
        if number == 3:
            kill_once("child")
        Ledger.objects.create(entry=f"child {number}")
        return number

    @job(takes_context=True)
    def parent(context):
        kill_once("before")
        results = context.run_all("children", [child.s(number) for number in range(6)])
        kill_once("after")
        return results + [context.run("last", child.s(9))]
"""


def test_each_child_runs_once_although_the_workers_of_its_parent_are_killed(runworker: Callable[..., ManagePy]) -> None:
    runworker("--processes", "2", jobs=KILLED)
    parent_job = Job.objects.enqueue("extra.jobs.parent")
    wait_until(lambda: reload(parent_job).finished_at, "the parent has ended")
    wait_for_statuses(completed=8)
    assert parent_job.result == [0, 1, 2, 3, 4, 5, 9]
    assert Job.objects.filter(task="extra.jobs.child").count() == 7
    assert JobStep.objects.filter(job_id=parent_job.pk).count() == 2


@job(sequence=by("order", name="steps-orders"), name="steps.pack")
def pack(order: int) -> str:
    return f"order {order} is packed"


@job(takes_context=True, sequence=by("order", name="steps-orders"), name="steps.ship")
def ship(context: JobContext, order: int, order_to_pack: int) -> Any:
    return context.run("pack", pack.s(order_to_pack))


def test_a_child_in_the_sequence_of_its_parent_is_refused() -> None:
    ship.defer(order=1, order_to_pack=1)
    with pytest.raises(InvalidOption, match="same sequence as this job"):
        run_jobs(raise_errors=True)
    assert not JobChild.objects.exists()
    assert not Job.objects.filter(task="steps.pack").exists()


def test_a_child_in_another_sequence_than_its_parent_runs() -> None:
    parent_job = ship.defer(order=1, order_to_pack=2)
    run_jobs()
    assert reload(parent_job).result == "order 2 is packed"


@job(takes_context=True, name="steps.needs_shared")
def needs_shared(context: JobContext) -> Any:
    return context.run("shared", shared.s())


def test_a_child_of_two_parents_is_discarded_only_with_the_second_parent() -> None:
    parents = [needs_shared.defer(), needs_shared.defer()]
    for claimed in Job.objects.claim(queue_names=["default"], worker_id="w", limit=2):
        run(claimed)
    child = Job.objects.get(task="steps.shared")
    assert parents[0].cancel()
    assert reload(child).status == "queued"
    assert parents[1].cancel()
    assert reload(child).status == "discarded"


@job(takes_context=True, name="steps.retries_after_child")
def retries_after_child(context: JobContext) -> Any:
    context.step("before", calls.append, "before")
    result = context.run("shared", shared.s())
    if "failed" not in calls:
        calls.append("failed")
        raise ValueError
    return result


def test_a_job_is_retried_if_its_shared_child_ended_before_the_job_depended_on_it() -> None:
    def run_child() -> None:
        [claimed] = Job.objects.claim(queue_names=["default"], worker_id="other")
        run(claimed)
        connection.close()

    def after_running_the_child(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if "INSERT INTO skipqueue_child" in sql:
            with ThreadPoolExecutor() as other_worker:
                other_worker.submit(run_child).result()
        return execute(sql, *args)

    parent_job = retries_after_child.defer()
    [claimed] = Job.objects.claim(queue_names=["default"], worker_id="w")
    shared.defer()
    with connection.execute_wrapper(after_running_the_child):
        run(claimed)
    assert reload(parent_job).status == "scheduled"
    run_jobs(include_scheduled=True)
    assert (reload(parent_job).status, parent_job.result) == ("completed", 7)
    assert calls == ["before", "failed"]
