"""Alerts of several databases: each database has its own incidents, and the alerts name the database."""

import time
from typing import Any

import pytest

from django_skipqueue.events.sinks import send
from django_skipqueue.models import Incident
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised
from django_skipqueue.parts.alerts.watch import FIRST_ALERT_CHECK, WatchAlerts, check, confirm
from django_skipqueue.parts.alerts.webhook import payload
from django_skipqueue.queue.store import Store

from ...app.rows import make_job, make_worker
from ...console.cli.running import skipqueue
from ...harness.reached import NOBODY, reached_at

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")


@pytest.fixture(autouse=True)
def _two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH}


def check_and_confirm(alias: str) -> list[tuple[type, str]]:
    store = Store(alias)
    alerts = check(store)
    for alert in alerts:
        confirm(store, alert)
    return [(type(alert), alert.database) for alert in alerts]


def make_unserved_job(alias: str) -> None:
    """Make a job in a queue without a worker. It has waited long enough for an alert."""
    make_worker(using=alias, queues=["other"])
    make_job(using=alias, queue_name="mail")
    check(Store(alias))
    Incident.objects.using(alias).update(found_at="2026-01-01T00:00Z")


def test_each_database_has_its_own_incident() -> None:
    for alias in BOTH:
        make_unserved_job(alias)
    for alias in BOTH:
        assert check_and_confirm(alias) == [(AlertRaised, alias)]
        assert check_and_confirm(alias) == []
        assert Incident.objects.using(alias).count() == 1


def test_a_problem_of_one_database_does_not_begin_an_incident_of_another() -> None:
    make_worker()
    make_unserved_job("other")
    assert check_and_confirm("default") == []
    assert not Incident.objects.using("default").exists()


def test_a_supervisor_checks_its_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    make_unserved_job("other")
    service = WatchAlerts(Store("other"), delivered=lambda: True)
    while service.due_at <= time.monotonic() + FIRST_ALERT_CHECK:
        service.run(time.monotonic())
    assert Incident.objects.using("other").open().count() == 1
    assert not Incident.objects.using("default").exists()


def test_the_log_and_the_webhook_name_the_database(caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    make_unserved_job("other")
    (alert,) = check(Store("other"))
    send(alert)
    assert "alert raised database=other rule=queue-without-worker subject=mail severity=critical title=" in caplog.text
    sentence = alert.title
    assert payload("alert_raised", alert)["text"] == f"Critical on other: {sentence}"
    over = AlertOver(**{**vars(alert), "over_at": alert.since})
    assert payload("alert_over", over)["text"] == f"Over on other: {sentence} (lasted 0s)"
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert payload("alert_raised", alert)["text"] == f"Critical: {sentence}"


def test_the_command_checks_the_reachable_databases_if_one_is_down(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("gone", *BOTH)}
    make_worker()
    make_unserved_job("other")
    with reached_at("gone", NOBODY):
        result = skipqueue("alerts", "--json")
    assert result.code == 1
    assert [(report["database"], len(report["incidents"])) for report in result.objects] == [
        ("default", 0),
        ("other", 1),
    ]
