"""`attempts_of`, which reads the attempts of a job from its row."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.admin.jobs.attempts import attempts_of
from django_skipqueue.console.operations import number_of_attempts
from django_skipqueue.models import Job

from ....app.rows import STATUSES, make_job
from ..scene import iso_seconds_ago

pytestmark = pytest.mark.django_db


def test_attempts_are_listed_newest_first_and_the_newest_has_the_times_of_the_row() -> None:
    errors = [{"attempt": 1, "exception": "A"}, {"attempt": 2, "exception": "B", "duration_ms": 1500.0}]
    job = make_job(
        "completed", errors=errors, attempts=3, locked_by="w",
        started_at=timedelta(seconds=-3), finished_at=timedelta(0),
    )  # fmt: skip
    last, second, first = attempts_of(job)
    assert (last.number, last.status, last.worker, last.took) == (3, "completed", "w", "3.0 s")
    assert (second.number, second.exception, second.took) == (2, "B", "1.5 s")
    assert first.number == 1


def test_a_running_job_has_an_attempt_without_an_end() -> None:
    (attempt,) = attempts_of(make_job("running"))
    assert (attempt.status, attempt.duration, attempt.ended_at) == ("running", None, None)


def make_operation(verb: str, *, seconds_ago: float, attempts: int = 0, **fields: Any) -> dict[str, Any]:
    """Return an entry of `Job.operations`, which records what an operator has done."""
    return {"at": iso_seconds_ago(seconds_ago), "verb": verb, "by": "ann", "reason": "", "attempts": attempts} | fields


def make_failure(number: int, *, seconds_ago: float, **fields: Any) -> dict[str, Any]:
    """Return an entry of `Job.errors`, which records a failed attempt."""
    return {
        "attempt": number,
        "exception": "builtins.ValueError",
        "message": "no",
        "at": iso_seconds_ago(seconds_ago),
    } | fields


def test_attempt_numbers_continue_after_a_manual_retry() -> None:
    errors = [make_failure(number, seconds_ago=seconds) for number, seconds in ((1, 90), (2, 80), (1, 60), (1, 40))]
    operations = [
        make_operation("retry", seconds_ago=70, attempts=2),
        make_operation("retry", seconds_ago=50, attempts=1),
    ]
    job = make_job(
        "completed", errors=errors, operations=operations, attempts=2, started_at=timedelta(seconds=-2), locked_by="w"
    )
    assert [attempt.number for attempt in attempts_of(job)] == [5, 4, 3, 2, 1]
    assert number_of_attempts(job) == 5


def test_a_cancelled_attempt_is_listed() -> None:
    job = make_job(
        "discarded", operations=[make_operation("cancel", seconds_ago=3_600, attempts=1)], attempts=1, locked_by="w",
        started_at=timedelta(hours=-2),
    )  # fmt: skip
    (attempt,) = attempts_of(job)
    assert (attempt.label, attempt.status, attempt.number) == ("cancelled", "discarded", 1)
    assert attempt.took == "1 h"


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_job_that_was_waiting_when_it_was_cancelled_had_no_further_attempt(verb: str) -> None:
    job = make_job(
        "discarded", operations=[make_operation(verb, seconds_ago=1, attempts=1)], attempts=1, locked_by="w",
        started_at=timedelta(seconds=-110), errors=[make_failure(1, seconds_ago=100)],
    )  # fmt: skip
    assert [(attempt.label, attempt.number) for attempt in attempts_of(job)] == [("failed", 1)]


def test_a_cancelled_attempt_has_the_stack_at_which_it_was_stuck() -> None:
    stack = '  File "/srv/a.py", line 1, in f\n    hang()'
    stuck = make_failure(1, seconds_ago=1, exception="x.JobCancelled", traceback=stack)
    job = make_job(
        "discarded", operations=[make_operation("cancel", seconds_ago=7, attempts=1)], attempts=1, locked_by="w",
        started_at=timedelta(seconds=-110), errors=[stuck],
    )  # fmt: skip
    (attempt,) = attempts_of(job)
    assert (attempt.label, attempt.status) == ("cancelled", "discarded")
    assert "hang()" in attempt.parts[-1].text


@pytest.mark.parametrize(
    ("exception", "last_error", "label"),
    [
        ("django_skipqueue.Discard", "no", "discarded"),
        ("shop.Gone", "Gone: no", "discarded"),
        ("shop.Gone", "Discarded by hand.", "failed"),
    ],
)
def test_the_last_attempt_is_labelled_discarded_only_if_it_discarded_the_job(
    exception: str, last_error: str, label: str
) -> None:
    errors = [make_failure(1, seconds_ago=9), make_failure(2, seconds_ago=1, exception=exception)]
    job = make_job("discarded", errors=errors, attempts=2, last_error=last_error)
    assert [attempt.label for attempt in attempts_of(job)] == [label, "failed"]


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in ("running", "completed")])
def test_a_job_that_neither_runs_nor_has_completed_has_only_its_failed_attempts(status: str) -> None:
    job = make_job(status, started_at=timedelta(0), errors=[{"attempt": 1}])
    assert [attempt.number for attempt in attempts_of(job)] == [1]


def test_the_failure_that_a_worker_has_written_is_read_back() -> None:
    make_job(task="t")
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    try:
        raise ValueError("no such payment")
    except ValueError as error:
        job.fail(error)
    job.refresh_from_db()
    (attempt,) = attempts_of(job)
    assert (attempt.number, attempt.exception, attempt.message) == (1, "ValueError", "no such payment")
    assert "no such payment" in attempt.traceback
    assert attempt.ended_at is not None


@pytest.mark.parametrize("entry", [None, 7, "x", [], {}, {"attempt": "x", "duration_ms": "y", "at": 3, "message": {}}])
def test_an_invalid_entry_in_the_column_errors_raises_no_exception(entry: Any) -> None:
    # Only an object is listed as an attempt.
    assert len(attempts_of(make_job("failed", errors=[entry]))) == isinstance(entry, dict)
