"""The states of schedules, and which schedules the dashboard shows first."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Schedule
from django_skipqueue.parts.schedules import console as schedules_console
from django_skipqueue.parts.schedules.console import ScheduleState, first_schedules, schedule_states

from ...app.rows import make_job
from .rows import make_schedule

pytestmark = pytest.mark.django_db


def names_of(states: list[ScheduleState]) -> list[str]:
    return [state.row.name for state in states]


def test_schedules_in_trouble_come_first_then_schedules_that_fire_next() -> None:
    make_schedule("a: paused", due=900, paused_at=Now())
    make_schedule("b: retired", due=900, retired_at=Now())
    make_schedule("c: retired, with an error", due=900, retired_at=Now(), error="no")
    make_schedule("d: in an hour", due=-3_600)
    make_schedule("e: in a minute", due=-60)
    make_schedule("f: a little late", due=30)
    make_schedule("g: late", due=90)
    make_schedule("h: with an error, in two hours", due=-7_200, error="no")
    make_schedule("i: with an error, without a time", error="no")
    make_schedule("j: without a time")
    states, _ = first_schedules(10)
    first_letters_and_states = [(state.row.name[0], state.state) for state in states]
    assert first_letters_and_states == [
        ("g", "late"),
        ("h", "error"),
        ("i", "error"),
        ("f", "active"),
        ("e", "active"),
        ("d", "active"),
        ("a", "paused"),
        ("b", "retired"),
        ("c", "retired"),
        ("j", "active"),
    ]


def test_further_schedules_are_counted_in_two_queries() -> None:
    assert first_schedules(2) == ([], 0)
    for number in range(5):
        make_schedule(f"s{number}", due=-60 - number, last_job_id=number + 1)
    with CaptureQueriesContext(connection) as queries:
        states, number_of_hidden = first_schedules(2)
    assert (names_of(states), number_of_hidden, len(queries)) == (["s0", "s1"], 3, 2)
    assert first_schedules(5)[1] == first_schedules(9)[1] == 0  # no schedule is hidden


def test_the_first_schedules_are_among_the_schedules_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules_console, "MOST_SCHEDULES_SHOWN", 3)
    for number in range(5):
        make_schedule(f"s{number}", due=-60 + number)
    assert [state.row.name for state in schedule_states()] == ["s0", "s1", "s2"]
    states, number_of_hidden = first_schedules(2)
    assert (names_of(states), number_of_hidden) == (["s2", "s1"], 1)


def test_a_schedule_state_has_the_last_run_and_the_next_run() -> None:
    job = make_job("scheduled", attempts=1)
    make_schedule("s", due=-60, last_job_id=job.pk)
    make_schedule("t", due=-61)
    [state_of_s, state_of_t], _ = first_schedules(2)
    assert state_of_s.last_run is not None
    assert (state_of_s.last_run.state, state_of_t.last_run) == ("retrying", None)
    assert state_of_s.next_run is not None
    assert timedelta(0) < state_of_s.next_run - state_of_s.now <= timedelta(minutes=1)


JobFields = tuple[str, dict[str, Any]]
COMPLETED: JobFields = ("completed", {})
QUEUED: JobFields = ("queued", {})
DISCARDED: JobFields = ("discarded", {"last_error": "no"})
FAILED: JobFields = ("failed", {"last_error": "no"})
WAITS_FOR_RETRY: JobFields = ("scheduled", {"last_error": "no", "attempts": 1})
RUNS_AGAIN: JobFields = ("running", {"last_error": "no", "attempts": 2})


@pytest.mark.parametrize(
    ("runs", "failures", "state"),
    [
        ([], 0, "active"),
        ([FAILED], 1, "active"),
        ([FAILED, FAILED], 2, "failing"),
        ([FAILED, COMPLETED, FAILED], 1, "active"),
        ([COMPLETED, FAILED, FAILED], 0, "active"),
        ([QUEUED, WAITS_FOR_RETRY, RUNS_AGAIN, COMPLETED], 2, "failing"),
        ([QUEUED, DISCARDED, WAITS_FOR_RETRY, FAILED, FAILED], 3, "failing"),
    ],
)
def test_a_schedule_fails_if_its_last_runs_have_failed(runs: list[JobFields], failures: int, state: str) -> None:
    """The newest run comes first. A run that has not ended, or that is discarded, does not count."""
    ids_from_the_oldest = [make_job(status, **fields).pk for status, fields in reversed(runs)]
    ids = ids_from_the_oldest[::-1]
    make_schedule("s", due=-60, last_job_id=ids[0] if ids else None, earlier_job_ids=ids[1:])
    (only_state,) = schedule_states()
    assert (only_state.failures, only_state.state) == (failures, state)
    assert only_state.error == ("no" if state == "failing" else "")


def test_a_time_that_was_skipped_because_of_a_failed_run_counts_as_a_failure() -> None:
    job = make_job("scheduled", attempts=3, last_error="no")
    times = {"last_run_at": Now() - timedelta(minutes=5), "skipped_at": Now()}
    make_schedule("s", due=-60, last_job_id=job.pk, **times)
    assert schedule_states()[0].failures == 1
    make_schedule("t", due=-60, last_job_id=job.pk, overlap="skip", **times)
    assert schedule_states(name="t")[0].state == "failing"


def test_a_schedule_can_fail_since_a_run_that_is_no_longer_known() -> None:
    """None of the five jobs whose ids the row has succeeded. The row says when the first failure was."""
    first_failure_at = Now() - timedelta(hours=9)
    ids = [make_job("failed", last_error="no").pk for _ in range(5)]
    for name, job_ids in (("all", ids), ("some", [*ids[:4], make_job("completed").pk])):
        make_schedule(
            name, due=-60, last_job_id=job_ids[0], earlier_job_ids=job_ids[1:], failing_since=first_failure_at
        )
    all_failed, recovered = schedule_states()
    assert all_failed.failing_since == Schedule.objects.get(name="all").failing_since
    assert recovered.failing_since == recovered.failed_runs[-1].enqueued_at


def test_secrets_in_the_error_of_a_failing_schedule_are_masked(settings: Any) -> None:
    jobs = [make_job("failed", last_error="ValueError: hunter22\n…").pk for _ in range(2)]
    make_schedule("s", due=-60, last_job_id=jobs[1], earlier_job_ids=jobs[:1], kwargs={"password": "hunter22"})
    assert schedule_states()[0].error == "ValueError: ••••••"
    settings.SKIPQUEUE = {"RULES": {"failing-schedule": 3}}
    assert schedule_states()[0].state == "active"
    settings.SKIPQUEUE = {"RULES": {"failing-schedule": None}}
    assert schedule_states()[0].state == "active"
