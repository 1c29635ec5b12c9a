"""Schedules that did not fire."""

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
    assert (finding.severity, finding.found) == ("critical", "late, late by 10 h")
    make_schedule("broken", due=36_000, error="no task")
    broken, late = found("late-schedule")
    assert broken.found == "broken, late by 10 h no task"
    assert late.command == "python manage.py runworker"


def test_of_many_the_first_are_named(found: Found) -> None:
    for number in range(12):
        make_schedule(f"s{number}", due=36_000)
    (finding,) = found("late-schedule")
    assert finding.found.count("late by") == 10
    assert finding.found.endswith("…")
