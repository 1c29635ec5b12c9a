"""The webhook, at a real HTTP server; supervisors and the command that announce incidents, as real processes."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_skipqueue import signals
from django_skipqueue.events.sinks import send
from django_skipqueue.models import Incident, Job, Worker
from django_skipqueue.parts.alerts import webhook as module
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised

from ..app.rows import make_job
from ..app.waiting import wait_until
from ..harness.processes import ManagePy
from .webhooks import Webhook, webhook

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RAISED = AlertRaised("default", "oldest_waiting", "mail", 372.0, 300.0, NOON)
OVER = AlertOver("default", "oldest_waiting", "mail", 372.0, 300.0, NOON, NOON + timedelta(minutes=12))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))


@pytest.fixture
def server(settings: Any) -> Iterator[Webhook]:
    with webhook() as server:
        settings.SKIPQUEUE = {"ALERTS": {"webhook": server.address}}
        yield server


def test_an_alert_is_posted_as_json(server: Webhook) -> None:
    send(RAISED)
    send(OVER)
    raised, over = server.posted
    assert server.requests == [("POST", "application/json")] * 2
    assert raised["text"] == "alert raised: oldest_waiting in queue mail is 6m12s, limit 5m00s"
    assert over["text"] == ("alert over: oldest_waiting in queue mail lasted 12m00s, last value 6m12s, limit 5m00s")
    expected = {"rule": "oldest_waiting", "queue": "mail", "value": 372.0, "limit": 300.0, "database": "default"}
    assert {name: raised[name] for name in expected} == {name: over[name] for name in expected} == expected
    assert (raised["event"], raised["over_at"]) == ("alert_raised", None)
    assert (over["event"], over["since"], over["over_at"]) == ("alert_over", NOON.isoformat(), OVER.over_at.isoformat())


def test_log_lines_and_signals_come_as_well(sent: Any, caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    settings.SKIPQUEUE = {}
    caplog.set_level("INFO", logger="django_skipqueue")
    raised, over = sent(signals.alert_raised), sent(signals.alert_over)
    send(RAISED)
    send(OVER)
    assert [each["sender"] for each in (*raised, *over)] == ["oldest_waiting"] * 2
    assert (raised[0]["queue_name"], raised[0]["value"], over[0]["over_at"]) == ("mail", 372.0, OVER.over_at)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "alert raised rule=oldest_waiting queue=mail value=6m12s limit=5m00s"),
        ("INFO", "alert over rule=oldest_waiting queue=mail value=6m12s lasted=12m00s"),
    ]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (AlertRaised("default", "failed_share", "", 0.254, 0.2, NOON), "failed_share is 25.4 %, limit 20 %"),
        (AlertRaised("default", "recoveries", "", 7, 5, NOON), "recoveries is 7, limit 5"),
        (
            AlertRaised("default", "no_worker", "a\nb", 61, 60, NOON),
            "no_worker in queue a\ufffdb is 1m01s, limit 1m00s",
        ),
    ],
)
def test_values_have_units(server: Webhook, event: AlertRaised, said: str) -> None:
    send(event)
    assert server.posted[0]["text"] == f"alert raised: {said}"


def test_an_error_of_the_server_is_tried_again(settings: Any) -> None:
    with webhook(500, 503) as server:
        settings.SKIPQUEUE = {"ALERTS": {"webhook": server.address}}
        send(RAISED)
        assert (len(server.requests), len(server.posted)) == (3, 1)


@pytest.mark.parametrize("status", [404, 302, 307])
def test_a_failure_is_logged_without_the_address(settings: Any, caplog: pytest.LogCaptureFixture, status: int) -> None:
    with webhook(status, status, status) as server:
        settings.SKIPQUEUE = {"ALERTS": {"webhook": server.address}}
        send(RAISED)
        assert server.requests == [("POST", "application/json")] * 3, "and follows no redirect"
    assert f'webhook failed host=127.0.0.1 reason="HTTP status {status}"' in caplog.messages
    assert "secret" not in caplog.text


def test_a_server_that_is_not_there_is_logged(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    with webhook() as server:
        address = server.address
    settings.SKIPQUEUE = {"ALERTS": {"webhook": address}}
    send(RAISED)
    assert "webhook failed host=127.0.0.1 reason=ConnectionRefusedError" in caplog.messages


# Real processes


QUICKLY = """
import django_skipqueue.parts.alerts.watch

django_skipqueue.parts.alerts.watch.CHECK_INTERVAL = 1.3
django_skipqueue.parts.alerts.watch.CALM_SECONDS = 0.1
"""


@pytest.mark.django_db(transaction=True)
def test_several_supervisors_announce_an_incident_once(runworker: Callable[..., ManagePy]) -> None:
    with webhook() as server:
        skipqueue = {"ALERTS": {"oldest_waiting": {"mail": 60}, "webhook": server.address}}
        make_job(queue_name="mail", run_after=timedelta(seconds=-100))
        workers = [runworker("--queues", "other", jobs=QUICKLY, skipqueue=skipqueue) for _ in range(3)]
        wait_until(lambda: Worker.objects.count() == 3, "all handle signals by now")
        wait_until(lambda: server.posted, "the alert is posted")
        wait_until(lambda: Incident.objects.get(rule="oldest_waiting").is_announced, "it is confirmed")
        workers[0].send(signal.SIGTERM)
        assert workers[0].wait() == 0
        Job.objects.all().delete()
        wait_until(lambda: len(server.posted) >= 2, "its end is posted")
        wait_until(lambda: not Incident.objects.exclude(rule="").exists(), "that is confirmed")
        for worker in workers[1:]:
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
        assert [each["event"] for each in server.posted] == ["alert_raised", "alert_over"]
        assert sum(worker.log.count("alert raised") for worker in workers) == 1
        assert sum(worker.log.count("alert over") for worker in workers) == 1


@pytest.mark.django_db(transaction=True)
def test_the_command_checks_once_for_cron(manage: Callable[..., ManagePy]) -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-100))
    with webhook() as server:
        skipqueue = {"ALERTS": {"oldest_waiting": 60, "webhook": server.address}}
        first = manage("skipqueue", "alerts", skipqueue=skipqueue)
        assert first.wait() == 3
        assert re.search(r"alert raised rule=oldest_waiting value=[12]m", first.log), first.log
        assert "RULE" in first.log
        second = manage("skipqueue", "alerts", "--json", skipqueue=skipqueue)
        assert second.wait() == 3
        (incident,) = json.loads(second.log.splitlines()[0])["incidents"]
        assert (incident["rule"], incident["queue_name"], incident["threshold"]) == ("oldest_waiting", "", 60)
        assert "Limits: 1. Open incidents: 1." in second.log
        assert len(server.posted) == 1


@pytest.mark.django_db(transaction=True)
def test_the_command_without_limits_or_incidents(manage: Callable[..., ManagePy]) -> None:
    nothing = manage("skipqueue", "alerts")
    assert nothing.wait() == 1
    assert "SKIPQUEUE['ALERTS'] has no limit" in nothing.log
    calm = manage("skipqueue", "alerts", skipqueue={"ALERTS": {"oldest_waiting": 60}})
    assert calm.wait() == 0
    assert "Open incidents: 0." in calm.log
