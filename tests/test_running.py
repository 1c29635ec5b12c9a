"""`running.run`, and the loop of docs/how-to/scale.md, by the page's own text."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue.exceptions import LeaseLost
from django_skipqueue.models import Job
from django_skipqueue.worker.by_hand import run

from .app import jobs, worker_jobs
from .app.models import Ledger
from .app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).parent.parent / "docs/how-to/scale.md"


@pytest.fixture
def work_once() -> Callable[[], int]:
    """The function of this name on the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    functions, loop, _ = code.partition("while True:")
    assert loop
    namespace: dict[str, Any] = {}
    exec(functions, namespace)
    found: Callable[[], int] = namespace["work_once"]
    return found


def test_the_loop_of_the_page_settles_whatever_a_task_is_and_does(work_once: Callable[[], int]) -> None:
    expected = {
        jobs.add.using(queue_name="gpu").defer(1, 2).pk: ("completed", 3),
        worker_jobs.awrite.using(queue_name="gpu").defer("async").pk: ("completed", None),
        worker_jobs.atomic_write.using(queue_name="gpu", max_attempts=1).defer("no", fails=True).pk: ("failed", None),
        worker_jobs.atomic_write.using(queue_name="gpu").defer("kept").pk: ("completed", "kept"),
        worker_jobs.atomic_returns.using(queue_name="gpu").defer("set").pk: ("failed", None),
        Job.objects.enqueue("gone.jobs.unknown", queue_name="gpu").pk: ("scheduled", None),
    }
    while work_once():
        pass
    assert {each.pk: (each.status, each.result) for each in Job.objects.all()} == expected
    assert set(Ledger.objects.values_list("entry", flat=True)) == {"async", "kept"}


def claimed(task: str = "tests.app.jobs.noop", **fields: Any) -> Job:
    make_job(task=task, **fields)
    (found,) = Job.objects.claim(queue_names=["default"], worker_id="gpu:0123456789ab")
    return found


@pytest.mark.core
def test_a_task_that_stays_unknown_fails_after_the_grace() -> None:
    job = claimed("gone.jobs.unknown", unknown_since=timedelta(days=-1))
    run(job)
    assert Job.objects.get().status == "failed"


def test_a_job_that_was_not_claimed_is_not_run() -> None:
    with pytest.raises(LeaseLost, match="only a job that was claimed"):
        run(make_job(task="tests.app.worker_jobs.write", args=["x"]))
    assert not Ledger.objects.exists()


@pytest.mark.parametrize("task", ["tests.app.jobs.noop", "tests.app.worker_jobs.atomic_write"])
def test_a_job_that_somebody_has_taken_is_not_written(task: str) -> None:
    job = claimed(task, args=[] if task.endswith("noop") else ["x"])
    Job.objects.get(pk=job.pk).cancel()
    with pytest.raises(LeaseLost):
        run(job)
    assert Job.objects.get().status == "discarded"
    assert not Ledger.objects.exists()


@pytest.mark.core
def test_the_attempt_is_returned_and_the_job_knows_its_status() -> None:
    job = claimed()
    attempt = run(job)
    assert (attempt.worker, attempt.outcome.status, job.status) == ("gpu", "completed", "completed")
    row = Job.objects.get()
    assert row.finished_at is not None
    assert row.started_at is not None
    assert row.locked_at is None
    assert abs((row.finished_at - row.started_at).total_seconds() * 1000 - attempt.duration_ms) < 0.01


def test_a_task_gets_its_context_and_may_complete_its_job_itself() -> None:
    attempt = run(claimed("tests.app.worker_jobs.completes_itself", args=["x"]))
    assert attempt.is_written
    assert (Job.objects.get().result, Ledger.objects.get().entry) == ("by hand", "x")


def test_ctrl_c_ends_the_loop_and_is_kept_as_a_failure() -> None:
    job = claimed("tests.app.worker_jobs.raise_base_exception", args=["KeyboardInterrupt"])
    with pytest.raises(KeyboardInterrupt):
        run(job)
    assert Job.objects.get().status in ("failed", "scheduled")
