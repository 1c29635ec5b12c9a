"""Rules about jobs that do not run: each test makes a finding appear."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from ..app.rows import UNFINISHED, make_job, make_worker, multiply
from .conftest import Found


@pytest.mark.core
def test_a_task_that_this_process_does_not_have(found: Found) -> None:
    make_job()
    assert found("unknown-task") == []
    make_job(task="shop.jobs.renamed", queue_name="other")
    make_job("scheduled", task="shop.jobs.gone")
    gone, renamed = found("unknown-task")
    assert renamed.severity == "warning"
    assert renamed.title.startswith("Jobs of shop.jobs.renamed have waited since ")
    assert renamed.command == "python manage.py skipqueue discard --task shop.jobs.renamed"
    assert (gone.subject, renamed.subject) == ("shop.jobs.gone", "shop.jobs.renamed")
    assert "Tasks that are not registered: 2." in gone.found


def test_a_finished_job_of_an_unknown_task_is_history(found: Found) -> None:
    make_job("failed", task="shop.jobs.renamed")
    assert found("unknown-task") == []


@pytest.mark.core
def test_a_job_that_runs_for_long(found: Found) -> None:
    make_job("running", locked_at=timedelta(minutes=-50))
    assert found("long-job") == []
    job = make_job("running", locked_at=timedelta(hours=-2), task="shop.jobs.sync", locked_by="web-1/1:abcdef123456")
    (finding,) = found("long-job")
    assert finding.severity == "warning"
    assert finding.found == f"Jobs: 1. job {job.pk} (shop.jobs.sync) on web-1/1 for 2 h"
    assert str(job.pk) in finding.command


@pytest.mark.core
def test_a_running_job_whose_worker_is_gone(found: Found, settings: Any) -> None:
    live = make_worker()
    make_job("running", locked_by=str(live.pk), locked_at=timedelta(minutes=-30))
    make_job("running", locked_by="gone:abcdef123456", locked_at=timedelta(seconds=-90))
    assert found("orphaned-job") == [], "it may still be recovered"
    job = make_job("running", locked_by="gone:abcdef123456", locked_at=timedelta(minutes=-5))
    dead = make_worker(heartbeat=timedelta(minutes=-9))
    make_job("running", locked_by=str(dead.pk), locked_at=timedelta(minutes=-8))
    (finding,) = found("orphaned-job")
    assert finding.severity == "critical"
    assert finding.found.startswith("Jobs: 2. ")
    assert f"job {job.pk} (tests.app.jobs.noop) on gone for 5 min" in finding.found
    settings.SKIPQUEUE = {"WORKER_TIMEOUT": 1_000}
    assert found("orphaned-job") == []


def test_a_job_that_a_carrier_holds_is_not_orphaned(found: Found) -> None:
    carrier = make_worker(heartbeat=-DAYS, is_external=True)
    make_job("running", locked_by=carrier.pk, locked_at=-DAYS)
    assert found("orphaned-job") == []


DAYS = timedelta(days=1)


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_key_that_is_held_for_days(found: Found, status: str) -> None:
    make_job(status, unique_key="sync:7", enqueued_at=-DAYS, run_after=-DAYS)
    make_job("completed", unique_key="sync:8", enqueued_at=-9 * DAYS, run_after=-9 * DAYS)
    make_job(status, enqueued_at=-9 * DAYS, run_after=-9 * DAYS)
    assert found("stuck-key") == []
    job = make_job(status, unique_key="sync:9", enqueued_at=-5 * DAYS, run_after=-5 * DAYS)
    (finding,) = found("stuck-key")
    assert finding.severity == "warning"
    assert f"Job {job.pk} (tests.app.jobs.noop, {status}) has been due for 5 d and still holds the unique key " in (
        finding.found
    )
    assert "sync:9" in finding.found
    assert str(job.pk) in finding.command


def test_a_key_of_a_job_that_is_not_due_yet_is_held_as_asked(found: Found) -> None:
    make_job("scheduled", unique_key="trial:7", enqueued_at=-20 * DAYS, run_after=10 * DAYS)
    make_job("queued", unique_key="trial:8", enqueued_at=-20 * DAYS, run_after=-DAYS)
    make_job("running", unique_key="trial:9", enqueued_at=-5 * DAYS, run_after=-5 * DAYS, unique_seconds=0)
    assert found("stuck-key") == []


def test_an_old_holder_is_found_whatever_its_key_is(found: Found) -> None:
    """The place of the key in the alphabet does not matter, nor do newer jobs with a higher priority."""
    multiply(make_job(priority=10), 300)
    make_job("queued", unique_key="zzz", enqueued_at=-5 * DAYS, run_after=-5 * DAYS)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, unique_key)"
            " SELECT 'other', 'tests.app.jobs.noop', '[]', '{}', 'queued', 'a' || number"
            " FROM generate_series(1, 5000) AS number"
        )
    (finding,) = found("stuck-key")
    assert "the key zzz" in finding.found


def test_finished_jobs_that_nobody_deletes(found: Found) -> None:
    make_job("completed", finished_at=timedelta(hours=-24, minutes=-30))
    assert found("prune-lag") == []
    make_job("failed", finished_at=timedelta(days=-32))
    (finding,) = found("prune-lag")
    assert (finding.severity, finding.command) == ("warning", "python manage.py prunejobs")
    assert "for 2 d" in finding.found


def test_the_number_of_jobs_ends_at_what_was_read(found: Found) -> None:
    for _ in range(101):
        make_job("running", locked_at=timedelta(hours=-2))
    (finding,) = found("long-job")
    assert finding.found.startswith("Jobs: 100+. ")
    assert finding.found.count("job ") == 5
