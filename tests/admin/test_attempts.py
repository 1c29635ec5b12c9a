"""`attempts`: the attempts of a job, as its row tells them."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.admin.attempts import attempts_of
from django_skipqueue.models import Job

from ..app.rows import STATUSES, make_job

pytestmark = pytest.mark.django_db


def test_the_newest_is_first_and_the_last_one_is_told_by_the_times_of_the_row() -> None:
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


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in ("running", "completed")])
def test_other_jobs_have_only_their_failed_attempts(status: str) -> None:
    job = make_job(status, started_at=timedelta(0), errors=[{"attempt": 1}])
    assert [attempt.number for attempt in attempts_of(job)] == [1]


def test_what_a_worker_really_wrote_is_read_back() -> None:
    make_job(task="t")
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="w")
    try:
        raise ValueError("no such payment")
    except ValueError as error:
        job.fail(error)
    job.refresh_from_db()
    (attempt,) = attempts_of(job)
    assert (attempt.number, attempt.exception, attempt.message) == (1, "builtins.ValueError", "no such payment")
    assert "no such payment" in attempt.traceback
    assert attempt.ended_at is not None


@pytest.mark.parametrize("entry", [None, 7, "x", [], {}, {"attempt": "x", "duration_ms": "y", "at": 3, "message": {}}])
def test_an_entry_of_another_kind_is_no_error(entry: Any) -> None:
    assert len(attempts_of(make_job("failed", errors=[entry]))) == isinstance(entry, dict)
