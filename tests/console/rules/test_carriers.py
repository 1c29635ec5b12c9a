"""Rules about carriers: whether they have relays, whether their brokers are reached, and whether brokers lost jobs."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.contrib.celery.models import WorkerOfCelery

from ...app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ...app.rows import make_job, make_worker
from .conftest import FindingsOf

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def celery_as_carrier(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def test_a_job_in_a_carriers_queue_without_a_relay_is_a_critical_finding(findings_of: FindingsOf) -> None:
    make_worker(queues=[])
    assert findings_of("carrier-without-relay") == []
    make_job(queue_name="pdf")
    (finding,) = findings_of("carrier-without-relay")
    assert finding.severity == "critical"
    assert finding.title == "No relay of the carrier celery is alive"
    assert finding.command == "python manage.py runrelay --carrier celery"
    assert findings_of("queue-without-worker") == findings_of("no-worker") == [], "other rules do not report it again"
    make_relay()
    assert findings_of("carrier-without-relay") == []


def test_no_relay_is_needed_if_a_worker_was_given_the_carriers_queue(findings_of: FindingsOf) -> None:
    make_job(queue_name="pdf")
    make_worker(queues=["pdf"])
    assert findings_of("carrier-without-relay") == []


def test_handed_over_jobs_without_a_relay_are_a_warning(findings_of: FindingsOf) -> None:
    make_carrier()
    make_carried()
    make_relay(heartbeat=-HOUR)
    (finding,) = findings_of("carrier-without-relay")
    assert (finding.severity, finding.found) == ("warning", "Jobs that the carrier has: 1.")


def test_no_worker_is_missed_if_a_relay_serves_every_queue_with_jobs(findings_of: FindingsOf) -> None:
    make_job(queue_name="pdf")
    make_relay()
    assert findings_of("no-worker") == findings_of("queue-without-worker") == []


def test_a_broker_that_no_relay_has_reached_for_an_hour_is_critical(findings_of: FindingsOf) -> None:
    make_carrier(reached_at=-HOUR)
    assert findings_of("carrier-unreachable") == [], "without a relay, nobody knows whether the broker is reached"
    make_relay()
    (finding,) = findings_of("carrier-unreachable")
    assert finding.severity == "critical"
    assert finding.found == "Relays: 1. Time since the last contact: 1 h."
    assert finding.command == "python manage.py runworker --queues pdf"


def test_a_job_that_has_been_with_a_carrier_for_hours_may_have_been_lost(findings_of: FindingsOf) -> None:
    carrier, _ = make_carrier(), make_relay()
    make_carried(locked_at=-HOUR)
    assert findings_of("carrier-lost-jobs") == []
    lost_job = make_carried(task="shop.jobs.render", locked_at=-5 * HOUR)
    (finding,) = findings_of("carrier-lost-jobs")
    assert finding.title == "The broker of the carrier celery may have lost jobs"
    assert finding.found == f"Jobs: 1. job {lost_job.pk} (shop.jobs.render) on celery for 5 h"
    assert finding.command == "python manage.py runrelay --reclaim celery"
    WorkerOfCelery.objects.filter(pk=carrier.pk).update(reached_at=None)
    assert findings_of("carrier-lost-jobs") == [], "the broker is not reached, so no outcome can come"


def test_a_full_window_of_overdue_jobs_is_critical(findings_of: FindingsOf, settings: Any) -> None:
    settings.SKIPQUEUE = {"CARRIERS": {"celery": CARRIERS["CARRIERS"]["celery"] | {"WINDOW": 2}}}
    make_carrier(concurrency=2)
    make_relay()
    # After 661 s, the carrier's WAIT of 600 s and the time limit of the job are over.
    make_carried(timeout=60.0, locked_at=-timedelta(seconds=661))
    assert findings_of("carrier-lost-jobs") == [], "the window has room for another job"
    youngest = make_carried(timeout=60.0, locked_at=-timedelta(seconds=650))
    assert findings_of("carrier-lost-jobs") == [], "the youngest job may still run"
    type(youngest).objects.filter(pk=youngest.pk).update(locked_at=Now() - timedelta(seconds=661))
    (finding,) = findings_of("carrier-lost-jobs")
    assert (finding.severity, finding.title) == ("critical", "The broker of the carrier celery has lost its jobs")
    assert finding.found.startswith("Jobs that it should have: 2. They fill its window")
    assert finding.command == "python manage.py runrelay --reclaim celery"


def test_rules_about_workers_report_nothing_about_jobs_with_a_carrier(findings_of: FindingsOf) -> None:
    make_carrier(heartbeat=-9 * HOUR)
    make_carried(locked_at=-5 * HOUR)
    for code in ("long-job", "orphaned-job", "dead-worker", "late-worker"):
        assert findings_of(code) == [], code


def test_a_relay_counts_as_one_connection_whatever_the_carriers_concurrency(findings_of: FindingsOf) -> None:
    make_carrier(concurrency=100_000)
    make_relay()
    assert findings_of("connection-budget") == []


def test_handed_over_jobs_of_an_unconfigured_carrier_are_found(findings_of: FindingsOf, settings: Any) -> None:
    make_carrier()
    make_carried()
    settings.SKIPQUEUE = {}
    (finding,) = findings_of("carrier-lost-jobs")
    assert finding.found == "Jobs that the carrier has: 1."
    assert finding.command == "python manage.py runrelay --reclaim celery"
