"""On an ordinary day the watched rules find nothing, despite a failed job an hour, a flaky task, a deploy, and a peak.

The clock is simulated. For each of some hours of the day, the test writes the roll-ups (counts of jobs for a minute or
an hour) of eight days, as if it were that hour now.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue import job
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, RollUp, Worker
from django_skipqueue.parts.history.rollups import FailedAttempts, roll_up, rows_of_failures
from django_skipqueue.values.records import Cause

from ..app.failing import make_failing
from ..app.rows import DEFAULT, make_job, make_worker
from .test_incidents import current_findings, never_called

pytestmark = pytest.mark.django_db(transaction=True)

HOURS_A_DAY, DAYS = 24, 8
DEPLOY, PEAK = 10, 2
"""The hours of the day in which a deploy replaces the workers, and in which 50,000 mails are sent."""

HOURS_TESTED = (0, 1, 2, 3, 6, 10, 14, 18, 22)

# The causes of failed attempts: task, exception, and the place where it was raised.
RARE = Cause("shop.send", "builtins.TimeoutError", "shop.smtp")
FLAKY = Cause("shop.fetch", "builtins.ConnectionError", "shop.partner")


@pytest.fixture(autouse=True)
def _known_tasks(registry: Registry) -> None:
    for name in ("shop.send", "shop.fetch"):
        job(name=name)(never_called)


def rows_of_minute(hour_of_day: int, minute: int, peak_at: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the roll-ups of one minute: queue, task, and columns (counts of attempts, or the depth of the queue)."""
    is_peak, peak_minutes = hour_of_day == PEAK and minute >= peak_at, minute - peak_at
    failed = int(minute == 30)
    sent = 1_000 if is_peak else 20
    yield "mail", "shop.send", {"completed": sent - failed, "retried": failed, "ran_seconds": sent * 0.05}
    yield "default", "shop.fetch", {"completed": 7, "retried": 3, "ran_seconds": 5.0}
    depth = 50_000 - 800 * peak_minutes if is_peak else 3
    yield "mail", "", {"depth": depth, "oldest_seconds": 300.0 * peak_minutes if is_peak else 0.2}
    yield "", "", {"depth": depth, "oldest_seconds": 300.0 * peak_minutes if is_peak else 0.2}


def write_history(now: int, hour_of_day: int, minute_now: int) -> None:
    """Write the roll-ups of eight days by the hour, and of the last two hours also by the minute."""
    columns_by_roll_up: dict[tuple[int, str, str, int], dict[str, Any]] = {}
    start_of_hour = now // 3600 * 3600
    for hours_ago in range(HOURS_A_DAY * DAYS):
        hour = (hour_of_day - hours_ago) % HOURS_A_DAY
        for minute in range(60) if hours_ago else range(minute_now + 1):
            # a peak begins five minutes before the current minute
            for queue_name, task, columns in rows_of_minute(hour, minute, max(minute_now - 5, 0)):
                spans = [(3600, start_of_hour - 3600 * hours_ago)]
                if hours_ago < 2:
                    start_of_minute = now // 60 * 60 - 60 * (minute_now - minute) - 3600 * hours_ago
                    spans.append((60, start_of_minute))
                for span, starts_at in spans:
                    sums = columns_by_roll_up.setdefault((span, queue_name, task, starts_at), {})
                    for name, number in columns.items():
                        is_maximum = name in ("depth", "oldest_seconds")
                        sums[name] = max(sums.get(name, 0), number) if is_maximum else sums.get(name, 0) + number
    RollUp.objects.bulk_create(
        RollUp(span=span, queue_name=queue, task=task, starts_at=datetime.fromtimestamp(starts_at, UTC), **columns)
        for (span, queue, task, starts_at), columns in columns_by_roll_up.items()
    )
    this_minute = now // 60
    failures = {(this_minute - 2, RARE): 1, (this_minute, FLAKY): 30, (this_minute - 10_000, FLAKY): 900}
    attempts = {
        (minute, cause): FailedAttempts(number, minute * 60.0, minute * 60.0, 3, 7)
        for (minute, cause), number in failures.items()
    }
    roll_up(DEFAULT, [], list(rows_of_failures(attempts)))


def write_workers_and_jobs(hour_of_day: int) -> None:
    """Write the rows that the tables have now: a worker, jobs that run and wait, and a failed job."""
    worker = make_worker(name="web-1/1", heartbeat=timedelta(seconds=-3))
    if hour_of_day == DEPLOY:
        worker.delete()
        worker = make_worker(name="web-2/1")
    make_job("running", task="shop.fetch", locked_by=worker.id, locked_at=timedelta(seconds=-2))
    make_failing(RARE, "failed")
    make_failing(FLAKY, "scheduled", run_after=timedelta(seconds=20))
    make_job(task="shop.fetch")
    if hour_of_day == PEAK:
        make_job(queue_name="mail", task="shop.send", run_after=timedelta(minutes=-20))
    Worker.objects.filter(pk=worker.pk).update(heartbeat_at=Now())


def test_the_rules_find_nothing_on_an_ordinary_day(subtests: pytest.Subtests) -> None:
    for hour_of_day in HOURS_TESTED:
        with subtests.test(hour=hour_of_day):
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE skipqueue_rollup, skipqueue_failure_rollup")
            Job.objects.all().delete()
            Worker.objects.all().delete()
            now = int(time.time())
            minute_now = now % 3600 // 60
            write_history(now, hour_of_day, minute_now)
            write_workers_and_jobs(hour_of_day)
            assert current_findings() == []


def test_a_nightly_peak_that_comes_at_noon_and_a_flaky_task_that_always_fails_are_found() -> None:
    """The peak of the night comes at noon, and every attempt of the flaky task fails."""
    now = int(time.time())
    write_history(now, 12, now % 3600 // 60)
    write_workers_and_jobs(PEAK)
    RollUp.objects.filter(span=60, task="shop.fetch").update(completed=1, retried=9)
    assert {(finding.code, finding.subject) for finding in current_findings()} == {
        ("long-wait", "mail"),
        ("failing-task", "shop.fetch"),
    }
