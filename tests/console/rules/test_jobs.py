"""Rules about jobs that do not run: each test makes a finding appear."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from ...app.rows import UNFINISHED, make_job, make_worker, multiply
from .conftest import FindingsOf


@pytest.mark.core
def test_waiting_jobs_of_an_unregistered_task_are_found(findings_of: FindingsOf) -> None:
    make_job()
    assert findings_of("unknown-task") == []
    make_job(task="shop.jobs.renamed", queue_name="other")
    make_job("scheduled", task="shop.jobs.gone")
    gone, renamed = findings_of("unknown-task")
    assert renamed.severity == "warning"
    assert renamed.title.startswith("Jobs of shop.jobs.renamed have waited since ")
    assert renamed.command == "python manage.py skipqueue discard --task shop.jobs.renamed"
    assert (gone.subject, renamed.subject) == ("shop.jobs.gone", "shop.jobs.renamed")
    assert "Number of tasks that are not registered: 2." in gone.found


def test_a_finished_job_of_an_unregistered_task_is_no_finding(findings_of: FindingsOf) -> None:
    make_job("failed", task="shop.jobs.renamed")
    assert findings_of("unknown-task") == []


@pytest.mark.core
def test_a_job_that_has_run_for_two_hours_is_found(findings_of: FindingsOf) -> None:
    make_job("running", locked_at=timedelta(minutes=-50))
    assert findings_of("long-job") == []
    job = make_job("running", locked_at=timedelta(hours=-2), task="shop.jobs.sync", locked_by="web-1/1:abcdef123456")
    (finding,) = findings_of("long-job")
    assert finding.severity == "warning"
    assert finding.found == f"Jobs: 1. job {job.pk} (shop.jobs.sync) on web-1/1 for 2 h"
    assert str(job.pk) in finding.command


@pytest.mark.core
def test_running_jobs_of_dead_workers_are_found_after_the_worker_timeout(
    findings_of: FindingsOf, settings: Any
) -> None:
    live_worker = make_worker()
    make_job("running", locked_by=str(live_worker.pk), locked_at=timedelta(minutes=-30))
    make_job("running", locked_by="gone:abcdef123456", locked_at=timedelta(seconds=-90))
    assert findings_of("orphaned-job") == [], "the job may still be recovered"
    job = make_job("running", locked_by="gone:abcdef123456", locked_at=timedelta(minutes=-5))
    dead_worker = make_worker(heartbeat=timedelta(minutes=-9))
    make_job("running", locked_by=str(dead_worker.pk), locked_at=timedelta(minutes=-8))
    (finding,) = findings_of("orphaned-job")
    assert finding.severity == "critical"
    assert finding.found.startswith("Jobs: 2. ")
    assert f"job {job.pk} (tests.app.jobs.noop) on gone for 5 min" in finding.found
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": 1_000}
    assert findings_of("orphaned-job") == []


def test_a_job_that_a_carrier_holds_is_not_orphaned(findings_of: FindingsOf) -> None:
    carrier = make_worker(heartbeat=-DAY, is_external=True)
    make_job("running", locked_by=carrier.pk, locked_at=-DAY)
    assert findings_of("orphaned-job") == []


DAY = timedelta(days=1)


@pytest.mark.parametrize("status", UNFINISHED)
def test_an_unfinished_job_that_has_held_its_unique_key_for_days_is_found(findings_of: FindingsOf, status: str) -> None:
    make_job(status, unique_key="sync:7", enqueued_at=-DAY, run_after=-DAY)
    make_job("completed", unique_key="sync:8", enqueued_at=-9 * DAY, run_after=-9 * DAY)
    make_job(status, enqueued_at=-9 * DAY, run_after=-9 * DAY)
    assert findings_of("stuck-key") == []
    job = make_job(status, unique_key="sync:9", enqueued_at=-5 * DAY, run_after=-5 * DAY)
    (finding,) = findings_of("stuck-key")
    assert finding.severity == "warning"
    assert f"Job {job.pk} (tests.app.jobs.noop, {status}) has been due for 5 d and still holds the unique key " in (
        finding.found
    )
    assert "sync:9" in finding.found
    assert str(job.pk) in finding.command


def test_a_unique_key_that_is_not_stuck_is_no_finding(findings_of: FindingsOf) -> None:
    # The job is not due yet.
    make_job("scheduled", unique_key="trial:7", enqueued_at=-20 * DAY, run_after=10 * DAY)
    # The job has been due for only a day.
    make_job("queued", unique_key="trial:8", enqueued_at=-20 * DAY, run_after=-DAY)
    # The job held its key only until it started: `unique_seconds` is 0.
    make_job("running", unique_key="trial:9", enqueued_at=-5 * DAY, run_after=-5 * DAY, unique_seconds=0)
    assert findings_of("stuck-key") == []


def test_an_old_job_with_a_unique_key_is_found_among_thousands_of_newer_ones(findings_of: FindingsOf) -> None:
    """Neither keys that come before its key in the alphabet nor newer jobs of a higher priority hide the job."""
    multiply(make_job(priority=10), 300)
    make_job("queued", unique_key="zzz", enqueued_at=-5 * DAY, run_after=-5 * DAY)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, unique_key)"
            " SELECT 'other', 'tests.app.jobs.noop', '[]', '{}', 'queued', 'a' || number"
            " FROM generate_series(1, 5000) AS number"
        )
    (finding,) = findings_of("stuck-key")
    assert "the unique key zzz" in finding.found


def test_finished_jobs_that_were_kept_past_their_retention_are_found(findings_of: FindingsOf) -> None:
    make_job("completed", finished_at=timedelta(hours=-24, minutes=-30))
    assert findings_of("prune-lag") == []
    make_job("failed", finished_at=timedelta(days=-32))
    (finding,) = findings_of("prune-lag")
    assert (finding.severity, finding.command) == ("warning", "python manage.py prunejobs")
    assert "for 2 d" in finding.found


def test_more_than_a_hundred_long_jobs_are_counted_as_100_and_more(findings_of: FindingsOf) -> None:
    for _ in range(101):
        make_job("running", locked_at=timedelta(hours=-2))
    (finding,) = findings_of("long-job")
    assert finding.found.startswith("Jobs: 100+. ")
    assert finding.found.count("job ") == 5
