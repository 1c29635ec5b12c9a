"""`timeline`, which lists what happened to a job, in the order of time."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_skipqueue.console.admin.jobs.attempts import attempts_of
from django_skipqueue.console.admin.jobs.history import history_of
from django_skipqueue.console.admin.jobs.timeline import timeline
from django_skipqueue.models import Job

from ....app.rows import make_job
from ..scene import iso_seconds_ago, seconds_ago
from .test_attempts import make_failure, make_operation

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def timeline_texts(job: Job) -> list[tuple[str, ...]]:
    """Return the label and the details of each moment of the timeline."""
    return [(moment.label, *moment.details) for moment in timeline(job, attempts_of(job), timezone.now())]


def timeline_labels(job: Job) -> list[str]:
    """Return the label of each moment of the timeline."""
    return [label for label, *_ in timeline_texts(job)]


def test_the_timeline_has_attempts_with_waiting_and_running_times_and_operations() -> None:
    now = timezone.now()
    errors = [
        make_failure(
            1,
            seconds_ago=0,
            at=(now - timedelta(seconds=60)).isoformat(),
            duration_ms=30_000,
            wait_ms=7_000,
            worker="web-1/1",
        ),
        make_failure(2, seconds_ago=0, at=(now - timedelta(seconds=40)).isoformat(), duration_ms=12),
    ]
    retry = make_operation("retry", seconds_ago=0, at=(now - timedelta(seconds=30)).isoformat(), attempts=2)
    job = make_job(
        "completed", errors=errors, operations=[retry], attempts=1, locked_by="web-2/1", enqueued_at=now - 100 * SECOND,
        run_after=now - 30 * SECOND, started_at=now - 20 * SECOND, finished_at=now - 18 * SECOND,
    )  # fmt: skip
    assert timeline_texts(job) == [
        ("enqueued",),
        ("attempt 1 failed", "waited 7.0 s", "ran 30 s", "web-1/1"),
        ("attempt 2 failed", "20 s after the previous attempt", "ran 12 ms"),
        ("retried by ann",),
        ("attempt 3 completed", "20 s after the previous attempt", "waited 10 s", "ran 2.0 s", "web-2/1"),
    ]


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        ("queued", {}, ["enqueued"]),
        ("scheduled", {}, ["enqueued", "due"]),
        ("scheduled", {"attempts": 1, "errors": [make_failure(1, seconds_ago=1)]},
         ["enqueued", "attempt 1 failed", "next attempt due"]),
        ("running", {}, ["enqueued", "attempt 1 running"]),
        ("completed", {"started_at": seconds_ago(0.5)}, ["enqueued", "attempt 1 completed"]),
        ("completed", {}, ["enqueued", "completed"]),
        ("failed", {}, ["enqueued", "failed"]),
        ("discarded", {"operations": [make_operation("discard", seconds_ago=0)]}, ["enqueued", "discarded by ann"]),
        ("discarded", {"last_error": "DELETE by SQL"}, ["enqueued", "discarded"]),
        ("scheduled", {"operations": [make_operation("postpone", seconds_ago=5)]},
         ["enqueued", "postponed by ann", "due"]),
    ],
)  # fmt: skip
def test_the_timeline_of_a_job_in_each_status(status: str, fields: dict[str, Any], expected: list[str]) -> None:
    yesterday = timedelta(days=-1)  # long before the times above, which count from when the tests were collected
    times: dict[str, Any] = {"enqueued_at": yesterday} | ({} if status == "scheduled" else {"run_after": yesterday})
    job = make_job(status, **(times | fields))
    assert timeline_labels(job) == expected


def test_the_timeline_of_a_job_discarded_before_it_was_due_has_no_due_time() -> None:
    discard = make_operation("discard", seconds_ago=1)
    job = make_job(
        "discarded", enqueued_at=seconds_ago(9), run_after=seconds_ago(-3000), finished_at=seconds_ago(1),
        operations=[discard],
    )  # fmt: skip
    assert timeline_labels(job) == ["enqueued", "discarded by ann"]


def test_a_manual_retry_does_not_change_how_long_an_attempt_has_waited() -> None:
    errors = [make_failure(1, seconds_ago=20, duration_ms=1, wait_ms=12)]
    failed_job = make_job(
        "failed", attempts=1, errors=errors, run_after=seconds_ago(21), started_at=seconds_ago(20),
        finished_at=seconds_ago(20),
    )  # fmt: skip
    retry = make_operation("retry", seconds_ago=2, attempts=1)
    retried_job = make_job(
        "queued", errors=errors, operations=[retry], run_after=seconds_ago(2), started_at=seconds_ago(20)
    )
    for job in (failed_job, retried_job):
        assert ("attempt 1 failed", "waited 12 ms", "ran 1.0 ms") in timeline_texts(job)


def test_released_and_recovered_attempts_are_named() -> None:
    died = make_failure(1, seconds_ago=50, exception="django_skipqueue.exceptions.WorkerDied", worker="web-1/1")
    release = make_operation("release", seconds_ago=10, by="web-1/2", attempts=2, since=iso_seconds_ago(40))
    job = make_job(
        "queued", attempts=1, enqueued_at=seconds_ago(90), run_after=seconds_ago(90), errors=[died],
        operations=[release],
    )  # fmt: skip
    assert timeline_texts(job) == [
        ("enqueued",),
        ("attempt 1 ended with its worker, and the job was recovered", "web-1/1"),
        ("attempt 2 released, because its worker stopped", "ran 30 s", "web-1/2"),
    ]


@pytest.mark.parametrize(
    ("times", "label"),
    [(1, "attempt 2 snoozed"), (31, "attempt 2 snoozed, the last of 31 times"), ("x", "attempt 2 snoozed")],
)
def test_a_snoozed_attempt_keeps_its_number(times: Any, label: str) -> None:
    since = iso_seconds_ago(40)
    snooze = make_operation("snooze", seconds_ago=10, by="web-1/2", attempts=2, since=since, times=times)
    job = make_job("scheduled", attempts=1, enqueued_at=seconds_ago(90), run_after=seconds_ago(90), operations=[snooze])
    assert (label, "ran 30 s", "web-1/2") in timeline_texts(job)
    assert history_of(job) == []


def test_a_moment_in_the_future_is_marked() -> None:
    moments = timeline(make_job("scheduled"), [], timezone.now())
    assert [moment.is_ahead for moment in moments] == [False, True]
    assert moments[1].distance == "in 1 h"


def test_the_timeline_of_a_cancelled_job_has_the_operator_and_the_attempt() -> None:
    job = make_job(
        "discarded", attempts=1, locked_by="w", enqueued_at=seconds_ago(9_000), run_after=seconds_ago(9_000),
        started_at=seconds_ago(7_200), finished_at=seconds_ago(3_600),
        operations=[make_operation("cancel", seconds_ago=3_600, attempts=1, reason="it hung")],
    )  # fmt: skip
    assert timeline_texts(job) == [
        ("enqueued",),
        ("cancelled by ann",),
        ("attempt 1 cancelled", "waited 30 min", "ran 1 h", "w"),
    ]


def test_moments_are_in_the_order_of_their_times() -> None:
    job = make_job("running", errors=[make_failure(1, seconds_ago=10)], started_at=timedelta(seconds=-5), attempts=2)
    moments = timeline(job, attempts_of(job), timezone.now())
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)


def test_failed_attempts_without_a_time_are_left_out() -> None:
    assert timeline_labels(make_job("queued", errors=[{"attempt": 1}, {"attempt": 2, "at": "x"}])) == ["enqueued"]
    assert iso_seconds_ago(0) > iso_seconds_ago(1)
