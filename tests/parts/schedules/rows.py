"""Rows of schedules in any state, and their jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from django_skipqueue.models import Job, Schedule
from django_skipqueue.parts.schedules.entry import entries
from django_skipqueue.parts.schedules.fire import fire
from django_skipqueue.queue.store import Store

STORE = Store("default")


def make_schedule(name: str = "s", *, due: float | None = None, **fields: Any) -> Schedule:
    """Make a schedule of the admin that has been due for `due` seconds, by the database's clock."""
    if "cron" not in fields:
        fields.setdefault("interval", timedelta(minutes=5))
    fields.setdefault("task", "tests.app.jobs.noop")
    if due is not None:
        fields["next_run_at"] = fields["fire_at"] = Now() - timedelta(seconds=due)
    schedule = Schedule.objects.create(name=name, **fields)
    return Schedule.objects.get(pk=schedule.pk)


def fire_all(digests: tuple[str, ...] = (), *, store: Store = STORE) -> int:
    """Fire all schedules that are due, and return their number."""
    fired = 0
    while fire(store, digests=digests, skipped=()):
        fired += 1
    return fired


def jobs_of(name: str) -> list[Job]:
    """Return the jobs that the schedule has enqueued."""
    return list(Job.objects.filter(metadata__schedule__name=name).order_by("id"))


def planned_times_of(name: str) -> list[str]:
    """Return the times for which the schedule has enqueued a job."""
    return [job.metadata["schedule"]["planned_at"] for job in jobs_of(name)]


def let_time_pass(seconds: float) -> None:
    """Let time pass for all schedules."""
    names = ("next_run_at", "fire_at", "last_run_at", "confirmed_at", "retired_at", "skipped_at")
    Schedule.objects.update(**{name: F(name) - timedelta(seconds=seconds) for name in names})


def write_columns(**columns: Any) -> None:
    """Write columns by hand, without any check."""
    for name, value in columns.items():
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE skipqueue_schedule SET {name} = %s", [value])


@contextmanager
def without_entries() -> Iterator[None]:
    """Begin without entries of `@periodic`, and put the old entries back at the end."""
    entries_before = dict(entries)
    entries.clear()
    try:
        yield
    finally:
        entries.clear()
        entries.update(entries_before)
