"""Incidents in a real database: a process announces the beginning and the end of a problem once."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from django_skipqueue.console.rules.examination import rules_of
from django_skipqueue.console.rules.rule import Finding, Rule, Severity
from django_skipqueue.console.rules.verdict import Verdict
from django_skipqueue.models import Incident, Job, Worker
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised
from django_skipqueue.parts.alerts.watch import (
    CALM_SECONDS,
    CONFIRM_PATIENCE_SECONDS,
    LASTS_SECONDS,
    Alert,
    WatchAlerts,
    check,
    confirm,
)
from django_skipqueue.queue.store import Store

from ...app.rows import make_job, make_worker
from ...app.sessions import Session
from ...harness.languages import use_translations

pytestmark = pytest.mark.django_db(transaction=True)

STORE = Store("default")


def check_and_confirm() -> list[Alert]:
    """Check for alerts, confirm each alert as announced, and return the alerts."""
    alerts = check(STORE)
    for alert in alerts:
        confirm(STORE, alert)
    return alerts


def let_time_pass(seconds: float) -> None:
    """Move the times of all incidents back, as if this number of seconds had passed."""
    names = ("since", "found_at", "raised_at", "calm_since", "over_at", "claimed_at")
    Incident.objects.update(**{name: F(name) - timedelta(seconds=seconds) for name in names})


def make_unserved_jobs(*queue_names: str) -> None:
    """Make jobs in queues that no worker serves, which have waited long enough for an alert."""
    make_worker(queues=["other"])
    for name in queue_names or ("mail",):
        make_job(queue_name=name)
    check(STORE)
    let_time_pass(LASTS_SECONDS + 1)


# Which problems are announced


def test_without_a_setting_a_problem_that_lasts_is_announced() -> None:
    make_worker(queues=["other"])
    make_job(queue_name="mail")
    assert check_and_confirm() == []
    let_time_pass(LASTS_SECONDS + 1)
    (event,) = check_and_confirm()
    assert isinstance(event, AlertRaised)
    assert (event.database, event.rule, event.subject) == ("default", "queue-without-worker", "mail")
    assert (event.severity, event.title) == ("critical", Verdict.now(STORE).problems[0].title)
    assert event.since == Incident.objects.get(rule=event.rule).since


def test_each_subject_has_its_own_incident() -> None:
    make_unserved_jobs("mail", "sms")
    assert [event.subject for event in check_and_confirm()] == ["mail", "sms"]
    make_worker(queues=["mail"])
    check_and_confirm()
    let_time_pass(CALM_SECONDS + 1)
    assert [(type(event), event.subject) for event in check_and_confirm()] == [(AlertOver, "mail")]


def test_a_restart_of_all_workers_is_no_incident() -> None:
    make_job()
    worker = make_worker()
    for _ in range(3):
        Worker.objects.all().delete()
        assert check_and_confirm() == []
        let_time_pass(LASTS_SECONDS - 10)
        worker.save(force_insert=True)
        assert check_and_confirm() == []


def test_an_alert_has_the_start_that_the_rule_knows(replace_rules: Callable[..., None]) -> None:
    replace_rules(Finding.of(Severity.WARNING, "a problem"), since_minutes=5)
    assert check_and_confirm() == [], "a check has found it only now"
    let_time_pass(LASTS_SECONDS + 1)
    (event,) = check_and_confirm()
    assert (event.rule, event.severity, event.title) == ("of-test", "warning", "a problem")
    assert event.since < Incident.objects.get().found_at - timedelta(minutes=4)


def test_a_finding_of_the_severity_info_is_no_incident(replace_rules: Callable[..., None]) -> None:
    replace_rules(Finding.of(Severity.INFO, "a problem"))
    assert check_and_confirm() == []
    assert not Incident.objects.exists()


def test_a_rule_that_is_switched_off_raises_no_alert_and_ends_its_incident(settings: Any) -> None:
    make_unserved_jobs()
    assert len(check_and_confirm()) == 1
    settings.SKIPQUEUE = {"RULES": {"queue-without-worker": None}}
    assert check_and_confirm() == []
    let_time_pass(CALM_SECONDS + 1)
    assert [type(event) for event in check_and_confirm()] == [AlertOver]


def test_an_alert_is_in_english_in_a_project_of_any_language(settings: Any, tmp_path: Any) -> None:
    use_translations(settings, tmp_path, {"No worker is alive": "Neniu laboristo vivas"})
    AlertService().run()
    assert Incident.objects.get(rule="no-worker").title == "No worker is alive"


@pytest.fixture
def replace_rules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces all rules by the rule `of-test`, which returns the given findings or raises an error."""

    def set_rules(*findings: Finding, since_minutes: int = 0, fails: bool = False) -> None:
        def find(store: Store) -> Iterator[Finding]:
            if fails:
                store.rows("SELECT * FROM no_such_table")
            ((since,),) = store.rows(f"SELECT now() - interval '{since_minutes} minutes'")
            yield from (
                Finding.of(finding.severity, finding.title, subject=finding.subject, since=since)
                for finding in findings
            )

        rules = [Rule("of-test", find, "fine", is_watched=True)]
        monkeypatch.setattr("django_skipqueue.console.rules.examination.rules_of", lambda _: rules)

    return set_rules


def test_a_rule_that_cannot_be_applied_neither_begins_nor_ends_an_incident(replace_rules: Callable[..., None]) -> None:
    replace_rules(Finding.of(Severity.CRITICAL, "a problem"))
    check(STORE)
    let_time_pass(LASTS_SECONDS + 1)
    assert len(check_and_confirm()) == 1
    replace_rules(fails=True)
    for _ in range(3):
        assert check_and_confirm() == []
        let_time_pass(CALM_SECONDS + 1)
    assert [(incident.rule, incident.calm_since) for incident in Incident.objects.open()] == [("of-test", None)]


def test_an_unusable_database_ends_no_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    make_unserved_jobs()
    check_and_confirm()
    unusable = Finding("database-unusable", Severity.CRITICAL, "gone")
    monkeypatch.setattr("django_skipqueue.console.rules.verdict.examine", lambda *_, **__: [unusable])
    assert check(STORE) == []
    assert Incident.objects.open().get().calm_since is None


def test_findings_of_one_subject_are_one_incident(replace_rules: Callable[..., None]) -> None:
    replace_rules(
        Finding.of(Severity.CRITICAL, "first", subject="a"),
        Finding.of(Severity.WARNING, "second", subject="a"),
        Finding.of(Severity.WARNING, "long", subject="x" * 5_000),
    )
    check(STORE)
    let_time_pass(LASTS_SECONDS + 1)
    assert sorted(event.title for event in check_and_confirm()) == ["first", "long"]


# Each incident is announced once


def test_an_incident_is_announced_once_at_its_beginning_and_once_at_its_end() -> None:
    make_unserved_jobs()
    assert [type(event) for event in check_and_confirm()] == [AlertRaised]
    for _ in range(3):
        let_time_pass(100)
        assert check_and_confirm() == []
    Job.objects.all().delete()
    assert check_and_confirm() == []
    let_time_pass(CALM_SECONDS + 1)
    (event,) = check_and_confirm()
    assert isinstance(event, AlertOver)
    assert (event.over_at - event.since).total_seconds() > 300
    assert check_and_confirm() == []
    assert not Incident.objects.exclude(rule="").exists()


def test_a_problem_that_comes_and_goes_is_one_incident() -> None:
    make_unserved_jobs()
    assert len(check_and_confirm()) == 1
    for _ in range(3):
        Job.objects.all().delete()
        assert check_and_confirm() == [], "calm"
        let_time_pass(CALM_SECONDS - 5)
        assert check_and_confirm() == [], "not for long enough"
        make_job(queue_name="mail")
        assert check_and_confirm() == [], "found again"
    Job.objects.all().delete()
    assert check_and_confirm() == []
    let_time_pass(CALM_SECONDS - 5)
    assert check_and_confirm() == [], "calm only since the problem was last found"
    let_time_pass(10)
    assert [type(event) for event in check_and_confirm()] == [AlertOver]


def test_only_one_of_many_processes_announces_an_incident(session: Callable[[], Session]) -> None:
    make_unserved_jobs()
    sessions = [session() for _ in range(6)]
    barrier = threading.Barrier(len(sessions))

    def check_at_the_same_time() -> list[Alert]:
        barrier.wait(10)
        return check(STORE)

    checks = [each_session.start(check_at_the_same_time) for each_session in sessions]
    alert_counts = [len(each_check.result(20)) for each_check in checks]
    assert alert_counts.count(1) == 1
    assert sum(alert_counts) == 1


def test_an_alert_that_was_not_confirmed_is_announced_again() -> None:
    make_unserved_jobs()
    assert len(check(STORE)) == 1
    assert check(STORE) == []
    let_time_pass(CONFIRM_PATIENCE_SECONDS + 1)
    assert len(check(STORE)) == 1, "another process announces it"
    assert check(STORE) == []


def test_the_end_of_an_incident_is_announced_after_its_beginning() -> None:
    make_unserved_jobs()
    assert len(check(STORE)) == 1
    Job.objects.all().delete()
    check(STORE)
    let_time_pass(max(CALM_SECONDS, CONFIRM_PATIENCE_SECONDS) + 1)
    assert [type(event) for event in check_and_confirm()] == [AlertRaised]
    assert [type(event) for event in check_and_confirm()] == [AlertOver]


# The service of supervisors


class AlertService:
    """The service of a supervisor, and the events that it has sent."""

    def __init__(self) -> None:
        self.sent_events: list[Any] = []
        self.is_delivered = True
        self.service = WatchAlerts(Store("default", send=self.sent_events.append), delivered=lambda: self.is_delivered)

    def run(self) -> None:
        """Run the service once, and then as often as it has rules left to apply."""
        self.service.run(time.monotonic())
        while self.service.due_at <= time.monotonic():
            self.service.run(time.monotonic())


def test_only_one_supervisor_checks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    noted_checks: list[Any] = []

    def note_check(*arguments: Any) -> list[Alert]:
        noted_checks.append(arguments)
        return []

    monkeypatch.setattr("django_skipqueue.parts.alerts.watch.note_incidents", note_check)
    for alert_service in (AlertService(), AlertService(), AlertService()):
        alert_service.run()
    assert len(noted_checks) == 1
    let_time_pass(30)
    AlertService().run()
    assert len(noted_checks) == 2


def test_a_supervisor_confirms_an_alert_when_the_sinks_have_handled_it() -> None:
    make_unserved_jobs()
    alert_service = AlertService()
    alert_service.is_delivered = False
    alert_service.run()
    alert_service.run()
    assert len(alert_service.sent_events) == 1
    assert not Incident.objects.get(subject="mail").is_announced
    alert_service.is_delivered = True
    alert_service.run()
    assert Incident.objects.get(subject="mail").is_announced
    assert Incident.objects.open().count() == 1


def test_a_supervisor_applies_one_rule_at_a_time() -> None:
    service = AlertService().service
    service.run(time.monotonic())
    runs = 1
    while service.due_at <= time.monotonic():
        service.run(time.monotonic())
        runs += 1
    assert runs > sum(rule.is_watched for rule in rules_of("default"))


def test_a_check_does_not_read_any_whole_table(django_assert_max_num_queries: Any) -> None:
    make_unserved_jobs()
    with django_assert_max_num_queries(150) as queries:
        check(STORE)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            for query in queries.captured_queries:
                if "skipqueue_job" in query["sql"] or "skipqueue_rollup" in query["sql"]:
                    cursor.execute(f"EXPLAIN {query['sql'].removeprefix('EXPLAIN (FORMAT JSON) ')}")
                    assert "Seq Scan on skipqueue_job" not in str(cursor.fetchall())
        finally:
            cursor.execute("RESET enable_seqscan")
