"""The schedules as operators see them: which of many are shown first."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue.parts.schedules import console as module
from django_skipqueue.parts.schedules.console import FirstSchedules, first_schedules, schedule_states

from ..app.rows import make_job
from .rows import make_schedule

pytestmark = pytest.mark.django_db


def names(found: FirstSchedules) -> list[str]:
    return [each.row.name for each in found.states]


def test_those_in_trouble_come_first_then_those_that_fire_next() -> None:
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
    assert [(each.row.name[0], each.state) for each in first_schedules(10).states] == [
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


def test_the_others_are_counted_in_the_same_query() -> None:
    assert first_schedules(2) == FirstSchedules([], 0)
    for number in range(5):
        make_schedule(f"s{number}", due=-60 - number)
    with CaptureQueriesContext(connection) as queries:
        found = first_schedules(2)
    assert (names(found), found.others, len(queries)) == (["s0", "s1"], 3, 1)
    assert first_schedules(5).others == first_schedules(9).others == 0


def test_they_are_among_those_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHOWN", 3)
    for number in range(5):
        make_schedule(f"s{number}", due=-60 + number)
    assert [each.row.name for each in schedule_states()] == ["s0", "s1", "s2"]
    found = first_schedules(2)
    assert (names(found), found.others) == (["s2", "s1"], 1)


def test_they_have_the_status_of_their_last_job_and_the_time() -> None:
    job = make_job("failed")
    make_schedule("s", due=-60, last_job_id=job.pk)
    make_schedule("t", due=-61)
    (state, other) = first_schedules(2).states
    assert (state.last_status, other.last_status) == ("failed", None)
    assert state.next_run is not None
    assert timedelta(0) < state.next_run - state.now <= timedelta(minutes=1)
