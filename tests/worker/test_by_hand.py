"""`by_hand.run`, and the loop in docs/how-to/scale.md: the tests run the code of the page."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue.exceptions import LeaseLost
from django_skipqueue.models import Job
from django_skipqueue.worker.by_hand import run

from ..app import jobs, worker_jobs
from ..app.models import Ledger
from ..app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).parents[2] / "docs/how-to/scale.md"


@pytest.fixture
def work_once() -> Callable[[], int]:
    """The function `work_once` of the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    functions, loop, _ = code.partition("while True:")
    assert loop, "the code of the page ends with a loop"
    namespace: dict[str, Any] = {}
    exec(functions, namespace)
    function: Callable[[], int] = namespace["work_once"]
    return function


def test_the_loop_of_the_documentation_settles_every_kind_of_task(work_once: Callable[[], int]) -> None:
    expected_by_id = {
        jobs.add.using(queue_name="gpu").defer(1, 2).pk: ("completed", 3),
        worker_jobs.awrite.using(queue_name="gpu").defer("async").pk: ("completed", None),
        worker_jobs.atomic_write.using(queue_name="gpu", max_attempts=1).defer("no", fails=True).pk: ("failed", None),
        worker_jobs.atomic_write.using(queue_name="gpu").defer("kept").pk: ("completed", "kept"),
        worker_jobs.atomic_returns.using(queue_name="gpu").defer("set").pk: ("failed", None),
        Job.objects.enqueue("gone.jobs.unknown", queue_name="gpu").pk: ("scheduled", None),
    }
    while work_once():
        pass
    assert {job.pk: (job.status, job.result) for job in Job.objects.all()} == expected_by_id
    assert set(Ledger.objects.values_list("entry", flat=True)) == {"async", "kept"}


def make_claimed_job(task: str = "tests.app.jobs.noop", **fields: Any) -> Job:
    make_job(task=task, **fields)
    (claimed_job,) = Job.objects.claim(queue_names=["default"], worker_id="gpu:0123456789ab")
    return claimed_job


@pytest.mark.core
def test_a_task_that_stays_unknown_fails_after_the_grace() -> None:
    job = make_claimed_job("gone.jobs.unknown", unknown_since=timedelta(days=-1))
    run(job)
    assert Job.objects.get().status == "failed"


def test_a_job_that_was_not_claimed_is_not_run() -> None:
    with pytest.raises(LeaseLost, match="only a job that was claimed"):
        run(make_job(task="tests.app.worker_jobs.write", args=["x"]))
    assert not Ledger.objects.exists()


@pytest.mark.parametrize("task", ["tests.app.jobs.noop", "tests.app.worker_jobs.atomic_write"])
def test_a_job_that_was_cancelled_after_its_claim_is_not_run(task: str) -> None:
    job = make_claimed_job(task, args=[] if task.endswith("noop") else ["x"])
    Job.objects.get(pk=job.pk).cancel()
    with pytest.raises(LeaseLost):
        run(job)
    assert Job.objects.get().status == "discarded"
    assert not Ledger.objects.exists()


@pytest.mark.core
def test_run_returns_the_attempt_and_updates_the_status_of_the_job() -> None:
    job = make_claimed_job()
    attempt = run(job)
    assert (attempt.worker, attempt.outcome.status, job.status) == ("gpu", "completed", "completed")
    stored_job = Job.objects.get()
    assert stored_job.finished_at is not None
    assert stored_job.started_at is not None
    assert stored_job.locked_at is None
    assert abs((stored_job.finished_at - stored_job.started_at).total_seconds() * 1000 - attempt.duration_ms) < 0.01


def test_a_task_gets_its_context_and_may_complete_its_job_itself() -> None:
    attempt = run(make_claimed_job("tests.app.worker_jobs.completes_itself", args=["x"]))
    assert attempt.is_written  # by the task itself
    assert (Job.objects.get().result, Ledger.objects.get().entry) == ("by hand", "x")


def test_a_keyboard_interrupt_is_raised_again_and_settled_as_a_failure() -> None:
    job = make_claimed_job("tests.app.worker_jobs.raise_base_exception", args=["KeyboardInterrupt"])
    with pytest.raises(KeyboardInterrupt):
        run(job)
    assert Job.objects.get().status in ("failed", "scheduled")
