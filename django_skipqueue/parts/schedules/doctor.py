"""The schedules: whether each has fired in time, and whether it can."""

from collections.abc import Iterator

from django.utils.translation import gettext

from ...console.doctor.finding import Finding, Severity
from ...console.durations import span
from ...events.log_format import printable
from ...queue.store import Store
from .operate import LateSchedule, late_schedules

MOST = 50
"""Schedules that are read."""

NAMED = 10
"""How many one finding names, at most."""

LATE = 120.0
"""Seconds after which a schedule has missed its time."""


def late(store: Store) -> Iterator[Finding]:
    found = late_schedules(store, limit=MOST, seconds=LATE)
    broken = [each for each in found if each.error]
    if broken:
        yield Finding(
            "late-schedule",
            Severity.CRITICAL,
            gettext("Schedules cannot fire"),
            _named(broken),
            gettext("Correct their tasks, arguments or times. A supervisor tries again every minute."),
            "python manage.py skipqueue schedules",
        )
    if len(found) > len(broken):
        yield Finding(
            "late-schedule",
            Severity.CRITICAL,
            gettext("Schedules have not fired"),
            _named([each for each in found if not each.error]),
            gettext(
                "Start a runworker whose code or settings have these schedules: one with other code does not fire them."
            ),
            "python manage.py runworker",
        )


def _named(found: list[LateSchedule]) -> str:
    shown = (
        gettext("%(name)s, late by %(span)s %(error)s")
        % {"name": printable(each.name), "span": span(each.late), "error": printable(each.error)}
        for each in found[:NAMED]
    )
    return "; ".join([*(each.strip() for each in shown), *(["…"] if len(found) > NAMED else [])])
