"""Rules about carriers: whether they have relays, whether their brokers are reached, and whether brokers lost jobs."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.contrib.celery.models import WorkerOfCelery

from ..app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ..app.rows import make_job, make_worker
from .conftest import Found

HOURS = timedelta(hours=1)


@pytest.fixture(autouse=True)
def carriers(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def test_jobs_that_wait_for_a_carrier_need_a_relay(found: Found) -> None:
    make_worker(queues=[])
    assert found("carrier-without-relay") == []
    make_job(queue_name="pdf")
    (finding,) = found("carrier-without-relay")
    assert finding.severity == "critical"
    assert finding.title == "No relay of the carrier celery is alive"
    assert finding.command == "python manage.py runrelay --carrier celery"
    assert found("queue-without-worker") == found("no-worker") == [], "it is said once"
    make_relay()
    assert found("carrier-without-relay") == []


def test_a_worker_that_was_given_the_queue_is_as_good(found: Found) -> None:
    make_job(queue_name="pdf")
    make_worker(queues=["pdf"])
    assert found("carrier-without-relay") == []


def test_jobs_that_are_with_a_carrier_need_a_relay_for_their_outcomes(found: Found) -> None:
    make_carrier()
    make_carried()
    make_relay(heartbeat=-HOURS)
    (finding,) = found("carrier-without-relay")
    assert (finding.severity, finding.found) == ("warning", "Jobs that the carrier has: 1.")


def test_relays_are_enough_where_all_queues_are_carried(found: Found) -> None:
    make_job(queue_name="pdf")
    make_relay()
    assert found("no-worker") == found("queue-without-worker") == []


def test_a_broker_that_no_relay_reaches(found: Found) -> None:
    make_carrier(reached_at=-HOURS)
    assert found("carrier-unreachable") == [], "nobody knows, without a relay"
    make_relay()
    (finding,) = found("carrier-unreachable")
    assert finding.severity == "critical"
    assert finding.found == "Relays: 1. Time since the last contact: 1 h."
    assert finding.command == "python manage.py runworker --queues pdf"


def test_a_broker_that_may_have_lost_jobs(found: Found) -> None:
    carrier, _ = make_carrier(), make_relay()
    make_carried(locked_at=-HOURS)
    assert found("carrier-lost-jobs") == []
    lost = make_carried(task="shop.jobs.render", locked_at=-5 * HOURS)
    (finding,) = found("carrier-lost-jobs")
    assert finding.title == "The broker of the carrier celery may have lost jobs"
    assert finding.found == f"Jobs: 1. job {lost.pk} (shop.jobs.render) on celery for 5 h"
    assert finding.command == "python manage.py runrelay --reclaim celery"
    WorkerOfCelery.objects.filter(pk=carrier.pk).update(reached_at=None)
    assert found("carrier-lost-jobs") == [], "the outcomes cannot come"


def test_a_full_window_of_jobs_that_the_broker_has_lost(found: Found, settings: Any) -> None:
    settings.SKIPQUEUE = {"CARRIERS": {"celery": CARRIERS["CARRIERS"]["celery"] | {"WINDOW": 2}}}
    make_carrier(concurrency=2)
    make_relay()
    make_carried(timeout=60.0, locked_at=-timedelta(seconds=661))
    assert found("carrier-lost-jobs") == [], "there is room for another one"
    youngest = make_carried(timeout=60.0, locked_at=-timedelta(seconds=650))
    assert found("carrier-lost-jobs") == [], "one may still run"
    type(youngest).objects.filter(pk=youngest.pk).update(locked_at=Now() - timedelta(seconds=661))
    (finding,) = found("carrier-lost-jobs")
    assert (finding.severity, finding.title) == ("critical", "The broker of the carrier celery has lost its jobs")
    assert finding.found.startswith("Jobs that the carrier has: 2. Its window is full of them")
    assert finding.command == "python manage.py runrelay --reclaim celery"


def test_no_other_finding_cries_wolf_about_carried_jobs(found: Found) -> None:
    make_carrier(heartbeat=-9 * HOURS)
    make_carried(locked_at=-5 * HOURS)
    for code in ("long-job", "orphaned-job", "dead-worker", "late-worker"):
        assert found(code) == [], code


def test_relays_need_one_connection_each(found: Found) -> None:
    make_carrier(concurrency=100_000)
    make_relay()
    assert found("connection-budget") == []


def test_jobs_of_a_carrier_that_the_settings_do_not_have(found: Found, settings: Any) -> None:
    make_carrier()
    make_carried()
    settings.SKIPQUEUE = {}
    (finding,) = found("carrier-lost-jobs")
    assert finding.found == "Jobs that the carrier has: 1."
    assert finding.command == "python manage.py runrelay --reclaim celery"
