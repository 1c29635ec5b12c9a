"""A stopping worker waits only for the running step of a job, not for the whole job. Sleeping jobs hold no permits."""

import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue import JobContext, by, job, limit
from django_skipqueue.models import Job, JobStep
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")


def reload(stale_job: Job) -> Job:
    stale_job.refresh_from_db()
    return stale_job


JOBS = """
    import asyncio, time
    from django_skipqueue import job
    from tests.app.models import Ledger

    def note(entry, seconds=0.5):
        Ledger.objects.create(entry=entry)
        time.sleep(seconds)

    @job
    def child():
        pass

    @job(takes_context=True)
    def steps(context):
        context.log("the log of the attempt")
        for number in range(20):
            context.step(f"step {number}", note, f"step {number}")

    @job(takes_context=True)
    async def async_steps(context):
        for number in range(20):
            await context.astep(f"step {number}", note, f"step {number}")

    @job(takes_context=True)
    def waits(context):
        context.step("step 0", note, "step 0", 2)
        context.wait("never")

    @job(takes_context=True)
    def runs(context):
        context.step("step 0", note, "step 0", 2)
        context.run("child", child.s())

    @job(takes_context=True)
    def plain(context):
        note("step 0", 0)
        while not context.stopping:
            time.sleep(0.01)
        note("saw it", 0)

    @job(takes_context=True)
    def loop_with_a_long_item(context):
        for number in context.each("all", range(30)):
            note(f"item {number}", 0 if number < 29 else 60)
"""


@pytest.mark.parametrize("task", ["steps", "async_steps", "waits", "runs"])
def test_a_stopping_worker_releases_a_job_between_two_steps_without_charging_the_attempt(
    runworker: Callable[..., ManagePy], task: str
) -> None:
    process = runworker("--concurrency", "1", jobs=JOBS)
    deferred_job = Job.objects.enqueue(f"extra.jobs.{task}")
    wait_until(lambda: Ledger.objects.filter(entry="step 0").exists(), "the first step runs")
    stopped_at = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - stopped_at < 8  # all steps together would take ten seconds
    assert (reload(deferred_job).status, deferred_job.attempts, deferred_job.gate) == ("queued", 0, None)
    assert deferred_job.operations[-1]["verb"] == "release"
    assert not JobStep.objects.filter(recorded_at=None).exists()
    assert Job.objects.count() == 1
    number_of_recorded_steps = JobStep.objects.count()
    assert number_of_recorded_steps >= 1
    if task == "steps":
        assert "the log of the attempt" in str(deferred_job.logs)
        runworker("--concurrency", "1", jobs=JOBS)
        wait_until(lambda: reload(deferred_job).finished_at, "the job has ended")
        assert set(Counter(Ledger.objects.values_list("entry", flat=True)).values()) == {1}


def test_a_task_without_steps_can_ask_whether_its_worker_is_stopping(runworker: Callable[..., ManagePy]) -> None:
    process = runworker("--concurrency", "1", jobs=JOBS)
    deferred_job = Job.objects.enqueue("extra.jobs.plain")
    wait_until(lambda: Ledger.objects.exists(), "the task runs")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert reload(deferred_job).status == "completed"
    assert Ledger.objects.filter(entry="saw it").exists()


def test_the_place_of_a_loop_is_written_before_its_job_is_released_while_it_runs(
    runworker: Callable[..., ManagePy],
) -> None:
    process = runworker("--concurrency", "1", jobs=JOBS)
    deferred_job = Job.objects.enqueue("extra.jobs.loop_with_a_long_item")
    wait_until(lambda: Ledger.objects.filter(entry="item 29").exists(), "the last item runs")
    process.send(signal.SIGTERM)
    process.wait_for("stopping")
    process.send(signal.SIGTERM)
    process.wait()
    assert (reload(deferred_job).status, deferred_job.attempts) == ("queued", 0)
    assert JobStep.objects.get(job_id=deferred_job.pk).result["done"] == 29


# Permits and sequences of jobs that sleep or wait


@job(takes_context=True, name="steps.limited", concurrency=limit(1))
def limited(context: JobContext, waits: bool) -> str:
    context.wait("go") if waits else context.sleep("nap", 60)
    return "done"


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_that_sleeps_or_waits_gives_back_its_permit(waits: bool) -> None:
    first, second = limited.defer(waits), limited.defer(waits)
    run_jobs()
    expected = "blocked" if waits else "scheduled"
    assert [reload(limited_job).status for limited_job in (first, second)] == [expected] * 2
    assert first.gate == ("held" if waits else None)
    if waits:
        assert Job.objects.all().signal("go") == 2
    run_jobs(include_scheduled=True)
    assert [reload(limited_job).status for limited_job in (first, second)] == ["completed"] * 2


@job(takes_context=True, name="steps.halting", sequence=by("key"), max_attempts=1)
def halting(context: JobContext, key: str, number: int) -> None:
    context.wait("go")
    if number == 1:
        raise ValueError


def test_a_sequence_halts_at_a_job_that_has_waited(settings: Any) -> None:
    first, second = halting.defer("k", 1), halting.defer("k", 2)
    run_jobs()
    assert reload(second).gate == "limit"
    assert first.signal("go")
    run_jobs()
    assert (reload(first).status, reload(second).status) == ("failed", "blocked")
    assert first.discard()
    run_jobs()
    assert reload(second).gate == "held"
