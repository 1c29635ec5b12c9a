"""The webhook: real supervisors, and the real command, post alerts to a real HTTP server."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_skipqueue import conf, signals
from django_skipqueue.events.sinks import send
from django_skipqueue.models import Incident, Job, Worker
from django_skipqueue.parts.alerts import webhook as webhook_module
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised

from ...app.rows import make_job, make_worker
from ...app.waiting import wait_until
from ...harness.processes import ManagePy
from .webhooks import Webhook, webhook

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
# Database, rule, subject, severity, title, and the time of its beginning.
INCIDENT = ("default", "queue-without-worker", "mail", "critical", "4 jobs wait in the queue mail", NOON)
RAISED, OVER = AlertRaised(*INCIDENT), AlertOver(*INCIDENT, NOON + timedelta(minutes=12))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "WEBHOOK_PAUSES", (0.0, 0.0))


@pytest.fixture
def server(settings: Any) -> Iterator[Webhook]:
    with webhook() as server:
        settings.SKIPQUEUE = {"ALERTS_WEBHOOK": server.address}
        yield server


def test_an_alert_is_posted_as_json(server: Webhook) -> None:
    send(RAISED)
    send(OVER)
    raised, over = server.posted
    assert server.requests == [("POST", "application/json")] * 2
    assert raised["text"] == "Critical: 4 jobs wait in the queue mail"
    assert over["text"] == "Over: 4 jobs wait in the queue mail (lasted 12m00s)"
    expected = {"rule": "queue-without-worker", "subject": "mail", "severity": "critical", "database": "default"}
    assert {name: raised[name] for name in expected} == {name: over[name] for name in expected} == expected
    assert (raised["event"], raised["over_at"]) == ("alert_raised", None)
    assert (over["event"], over["since"], over["over_at"]) == ("alert_over", NOON.isoformat(), OVER.over_at.isoformat())


def test_an_alert_is_also_logged_and_sent_as_a_signal(
    record_signal: Any, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.SKIPQUEUE = {}
    caplog.set_level("INFO", logger="django_skipqueue")
    raised_signals, over_signals = record_signal(signals.alert_raised), record_signal(signals.alert_over)
    send(RAISED)
    send(OVER)
    assert [received["sender"] for received in (*raised_signals, *over_signals)] == ["queue-without-worker"] * 2
    expected = {"subject": RAISED.subject, "title": RAISED.title, "severity": RAISED.severity}
    assert {name: raised_signals[0][name] for name in expected} == expected
    assert (over_signals[0]["since"], over_signals[0]["over_at"]) == (NOON, OVER.over_at)
    logged_fields = 'rule=queue-without-worker subject=mail severity=critical title="4 jobs wait in the queue mail"'
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", f"alert raised {logged_fields}"),
        ("INFO", f"alert over {logged_fields} lasted=12m00s"),
    ]


@pytest.mark.parametrize(
    "address", ["ftp://x/secret", "file:///etc/passwd", "https://user:secret@x/", "https://x/a secret", 5]
)
def test_the_error_for_an_invalid_webhook_address_does_not_show_it(settings: Any, address: Any) -> None:
    settings.SKIPQUEUE = {"ALERTS_WEBHOOK": address}
    (problem,) = conf.problems()
    assert problem == (
        "SKIPQUEUE['ALERTS_WEBHOOK'] must be None, or a URL that begins with http:// or https:// and a host."
    )
    settings.SKIPQUEUE = {"ALERTS_WEBHOOK": "https://hooks.example.com:8443/services/T0?x=1"}
    assert list(conf.problems()) == []


def test_a_post_that_fails_with_a_server_error_is_repeated(settings: Any) -> None:
    with webhook(500, 503) as server:
        settings.SKIPQUEUE = {"ALERTS_WEBHOOK": server.address}
        send(RAISED)
        assert (len(server.requests), len(server.posted)) == (3, 1)


@pytest.mark.parametrize("status", [404, 302, 307])
def test_a_failed_post_is_logged_without_the_address(
    settings: Any, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    with webhook(status, status, status) as server:
        settings.SKIPQUEUE = {"ALERTS_WEBHOOK": server.address}
        send(RAISED)
        assert server.requests == [("POST", "application/json")] * 3, "and follows no redirect"
    assert f'webhook failed host=127.0.0.1 reason="HTTP status {status}"' in caplog.messages
    assert "secret" not in caplog.text


def test_a_refused_connection_to_the_webhook_is_logged(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    with webhook() as server:
        address = server.address
    settings.SKIPQUEUE = {"ALERTS_WEBHOOK": address}
    send(RAISED)
    assert "webhook failed host=127.0.0.1 reason=ConnectionRefusedError" in caplog.messages


# Real processes


CHECKS_OFTEN = """
import django_skipqueue.parts.alerts.watch

django_skipqueue.parts.alerts.watch.ALERT_CHECK_INTERVAL = 1.3
django_skipqueue.parts.alerts.watch.LASTS_SECONDS = 0.1
django_skipqueue.parts.alerts.watch.CALM_SECONDS = 0.1
"""

JOB_THAT_LOOKS_FOR_THE_RULES = """
import sys

from django_skipqueue import job


@job
def has_rules():
    return "django_skipqueue.console.rules.verdict" in sys.modules
"""


@pytest.mark.django_db(transaction=True)
def test_several_supervisors_announce_an_incident_once(runworker: Callable[..., ManagePy]) -> None:
    with webhook() as server:
        skipqueue = {"ALERTS_WEBHOOK": server.address}
        make_job(queue_name="mail", run_after=timedelta(seconds=-100))
        workers = [runworker("--queues", "other", jobs=CHECKS_OFTEN, skipqueue=skipqueue) for _ in range(3)]
        wait_until(lambda: Worker.objects.count() == 3, "all workers have started")
        wait_until(lambda: server.posted, "the alert is posted")
        wait_until(lambda: Incident.objects.get(rule=RULE).is_announced, "the alert is confirmed")
        workers[0].send(signal.SIGTERM)
        assert workers[0].wait() == 0
        Job.objects.all().delete()
        wait_until(lambda: len(posted_events(server)) >= 2, "the end of the alert is posted")
        wait_until(lambda: not Incident.objects.filter(rule=RULE).exists(), "the end of the alert is confirmed")
        for worker in workers[1:]:
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
        assert posted_events(server) == ["alert_raised", "alert_over"]
        assert sum(worker.log.count(f"alert raised rule={RULE}") for worker in workers) == 1
        assert sum(worker.log.count(f"alert over rule={RULE}") for worker in workers) == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_has_not_imported_the_rules_of_its_supervisor(
    runworker: Callable[..., ManagePy],
) -> None:
    runworker(jobs=JOB_THAT_LOOKS_FOR_THE_RULES, is_new=True)  # as a fresh process, which has imported nothing yet
    wait_until(lambda: Incident.objects.filter(rule="").exists(), "the supervisor has applied the rules")
    job = make_job(task="extra.jobs.has_rules")
    wait_until(lambda: Job.objects.get(pk=job.pk).status == "completed", "the worker has run the job")
    assert Job.objects.get(pk=job.pk).result is False


RULE = "queue-without-worker"


def posted_events(server: Webhook) -> list[str]:
    """The posted events of RULE: while processes start, other rules may find problems too."""
    return [event["event"] for event in server.posted if event["rule"] == RULE]


LONG_AGO = "2026-01-01T00:00Z"


def make_incident() -> None:
    make_worker(queues=["other"])
    make_job(queue_name="mail")
    Incident.objects.create(rule=RULE, subject="mail", since=LONG_AGO, found_at=LONG_AGO)


@pytest.mark.django_db(transaction=True)
def test_the_alerts_command_raises_and_lists_incidents(manage: Callable[..., ManagePy]) -> None:
    make_incident()
    with webhook() as server:
        skipqueue = {"ALERTS_WEBHOOK": server.address}
        listing = manage("skipqueue", "alerts", skipqueue=skipqueue)
        assert listing.wait() == 3
        assert f"alert raised rule={RULE} subject=mail severity=critical title=" in listing.log
        assert re.search(rf"critical +{RULE} +mail +2026-01-01", listing.log), listing.log
        json_listing = manage("skipqueue", "alerts", "--json", skipqueue=skipqueue)
        assert json_listing.wait() == 3
        (incident,) = json.loads(json_listing.log.splitlines()[0])["incidents"]
        assert (incident["rule"], incident["subject"], incident["severity"]) == (RULE, "mail", "critical")
        assert "Open incidents: 1." in json_listing.log
        assert len(server.posted) == 1


@pytest.mark.django_db(transaction=True)
def test_the_alerts_command_without_incidents(manage: Callable[..., ManagePy]) -> None:
    make_worker()
    process = manage("skipqueue", "alerts")
    assert process.wait() == 0
    assert "Open incidents: 0." in process.log
