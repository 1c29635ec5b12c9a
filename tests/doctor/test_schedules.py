"""Schedules that did not fire."""

from typing import Any

from django.db.models.functions import Now

from ..schedules.rows import make_schedule
from .conftest import Found


def test_schedules_that_are_late(found: Found) -> None:
    make_schedule("in time", due=60)
    make_schedule("paused", due=600, paused_at=Now())
    make_schedule("gone", due=600, source="code", retired_at=Now())
    make_schedule("never")
    assert found("late-schedule") == []
    make_schedule("late", due=36_000)
    (finding,) = found("late-schedule")
    assert (finding.severity, finding.title) == ("critical", "The schedule late has not fired")
    assert (finding.found, finding.subject) == ("It is late by 10 h. ", "late")
    assert finding.command == "python manage.py runworker"
    make_schedule("broken", due=36_100, error="no task")
    broken, _ = found("late-schedule")
    assert (broken.title, broken.found) == ("The schedule broken cannot fire", "It is late by 10 h 1 min. no task")


def test_the_threshold_is_a_setting(found: Found, settings: Any) -> None:
    make_schedule("late", due=100)
    assert found("late-schedule") == []
    settings.SKIPQUEUE = {"RULES": {"late-schedule": 90}}
    assert len(found("late-schedule")) == 1


def test_of_many_the_first_have_findings(found: Found) -> None:
    for number in range(12):
        make_schedule(f"s{number}", due=36_000)
    assert len(found("late-schedule")) == 10
