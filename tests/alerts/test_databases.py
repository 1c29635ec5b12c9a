"""Alerts of several databases: each has its own incidents, and says so."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_skipqueue.events.sinks import send
from django_skipqueue.models import Incident
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised, sentence
from django_skipqueue.parts.alerts.settings import limits
from django_skipqueue.parts.alerts.watch import check, confirm
from django_skipqueue.parts.alerts.webhook import payload
from django_skipqueue.queue.store import Store

from ..app.rows import make_job
from ..harness.reached import NOBODY, reached_at
from ..management.skipqueue.running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")
ALERTS = {"oldest_waiting": 300}


@pytest.fixture(autouse=True)
def _several(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH, "ALERTS": ALERTS}


def announced(alias: str) -> list[tuple[type, str]]:
    store = Store(alias)
    alerts = check(store, limits(ALERTS))
    for alert in alerts:
        confirm(store, alert)
    return [(type(alert), alert.database) for alert in alerts]


def test_each_has_an_incident_of_its_own() -> None:
    for alias in BOTH:
        make_job(using=alias, run_after=timedelta(minutes=-10))
    for alias in BOTH:
        assert announced(alias) == [(AlertRaised, alias)]
        assert announced(alias) == []
        assert Incident.objects.using(alias).count() == 1


def test_what_waits_in_one_is_no_incident_in_another() -> None:
    make_job(using="other", run_after=timedelta(minutes=-10))
    assert announced("default") == []
    assert not Incident.objects.using("default").exists()


def test_the_log_and_the_webhook_name_it(caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    make_job(using="other", queue_name="mail", run_after=timedelta(minutes=-10))
    (alert,) = check(Store("other"), limits(ALERTS))
    send(alert)
    assert "alert raised database=other rule=oldest_waiting value=" in caplog.text
    assert payload("alert_raised", alert)["text"].startswith("alert raised: oldest_waiting on other is ")
    over = AlertOver(**{**vars(alert), "over_at": alert.since})
    assert payload("alert_over", over)["text"].startswith("alert over: oldest_waiting on other lasted ")
    settings.SKIPQUEUE = {"DATABASE": "other", "ALERTS": ALERTS}
    assert payload("alert_raised", alert)["text"].startswith("alert raised: oldest_waiting is ")


def test_the_command_checks_the_others_if_one_is_down(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("gone", *BOTH), "ALERTS": ALERTS}
    make_job(using="other", run_after=timedelta(minutes=-10))
    with reached_at("gone", NOBODY):
        result = skipqueue("alerts", "--json")
    assert result.code == 1
    assert [(each["database"], len(each["incidents"])) for each in result.objects] == [("default", 0), ("other", 1)]


@pytest.mark.parametrize(
    ("queue_name", "setting", "place"),
    [
        ("mail", {"DATABASES": BOTH}, " in queue mail on other"),
        ("", {"DATABASES": BOTH}, " on other"),
        ("mail", {"DATABASE": "other"}, " in queue mail"),
        ("", {"DATABASE": "other"}, ""),
    ],
)
def test_the_sentence_of_an_alert(settings: Any, queue_name: str, setting: Any, place: str) -> None:
    settings.SKIPQUEUE = setting
    event = AlertRaised("other", "oldest_waiting", queue_name, 61.0, 60.0, datetime.now(UTC))
    assert sentence(event) == f"oldest_waiting{place} is 1m01s, limit 1m00s"
