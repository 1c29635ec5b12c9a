"""The verdict: it lists the problems that the watched rules find, within a time limit, even if a rule fails."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.console.rules import examination
from django_skipqueue.console.rules.rule import Finding, Rule, Severity
from django_skipqueue.console.rules.verdict import Verdict
from django_skipqueue.models import Incident
from django_skipqueue.queue.store import Store

from ...app.rows import make_job, make_worker
from ...harness.reached import NOBODY, reached_at
from .broken_rules import fail_with_sql_error, sleep_a_minute
from .conftest import STORE

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def warn(store: Store) -> Iterator[Finding]:
    yield Finding.of(Severity.WARNING, "a warning")
    yield Finding.of(Severity.INFO, "good to know")


def report_critical(store: Store) -> Iterator[Finding]:
    yield Finding.of(Severity.CRITICAL, "critical")


@pytest.fixture
def use_rules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes its arguments the watched rules, next to one rule that is not watched.

    The code of each rule is the name of its function.
    """

    def set_rules(*functions: Callable[[Store], Any]) -> None:
        rules = [Rule(function.__name__, function, "fine", is_watched=True) for function in functions]
        rules.append(Rule("unwatched", report_critical, "fine"))
        monkeypatch.setattr("django_skipqueue.console.rules.examination.rules_of", lambda _: rules)

    return set_rules


def test_a_healthy_queue_has_a_verdict_without_problems() -> None:
    make_worker()
    verdict = Verdict.now(STORE)
    assert (verdict.is_well, verdict.problems, verdict.severity, str(verdict)) == (True, (), "ok", "All is well.")


def test_the_verdict_lists_the_problems_of_watched_rules_by_severity(use_rules: Callable[..., None]) -> None:
    use_rules(warn, report_critical)
    verdict = Verdict.now(STORE)
    assert [finding.title for finding in verdict.problems] == ["critical", "a warning"]
    assert (verdict.is_well, verdict.severity, str(verdict)) == (False, "critical", "2 problems")


def test_the_verdict_keeps_its_time_limit_and_names_the_rules_that_did_not_finish(
    use_rules: Callable[..., None],
) -> None:
    use_rules(*[sleep_a_minute] * 10, report_critical, fail_with_sql_error)
    started_at = time.monotonic()
    verdict = Verdict.now(STORE, seconds=0.5)
    assert time.monotonic() - started_at < 3
    assert verdict.problems[0].title == "critical", "rules that sleep do not keep the other rules from being applied"
    assert sorted(verdict.unapplied) == ["fail_with_sql_error", *["sleep_a_minute"] * 10]
    assert [finding.title for finding in verdict.problems[1:]] == [
        "11 rules could not be applied, sleep_a_minute among them"
    ]


def test_an_unreachable_database_is_the_only_problem_of_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    verdict = Verdict.now(STORE)
    assert [finding.code for finding in verdict.problems] == ["database-unusable"]
    assert verdict.is_unknown


def test_unapplied_migrations_are_the_only_problem_although_other_rules_fail() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'django_skipqueue' RETURNING name, applied")
        applied_migrations = cursor.fetchall()
        cursor.execute("ALTER TABLE skipqueue_worker RENAME TO somewhere_else")
        try:
            assert [finding.code for finding in Verdict.now(STORE).problems] == ["migrations"]
        finally:
            cursor.execute("ALTER TABLE somewhere_else RENAME TO skipqueue_worker")
            for applied_migration in applied_migrations:
                cursor.execute(
                    "INSERT INTO django_migrations VALUES (DEFAULT, 'django_skipqueue', %s, %s)", applied_migration
                )


def test_with_several_databases_a_problem_names_its_database(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("gone", "default", "other")}
    make_job(using="other")
    make_worker()
    with reached_at("gone", NOBODY):
        problems = [finding for alias in ("gone", "default", "other") for finding in Verdict.now(Store(alias)).problems]
    assert [(finding.database, finding.code) for finding in problems] == [
        ("gone", "database-unusable"),
        ("other", "no-worker"),
    ]


def test_a_problem_exists_since_its_incident_began() -> None:
    make_job()
    (problem,) = Verdict.now(STORE).problems
    assert problem.since is None
    Incident.objects.create(rule="no-worker", subject="", since=Now() - timedelta(minutes=5))
    (problem,) = Verdict.now(STORE).problems
    assert problem.since == Incident.objects.get().since


def test_the_duration_of_a_problem_is_measured_by_the_clock_of_the_database(
    use_rules: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 11, 25, 14, tzinfo=UTC)
    monkeypatch.setattr(examination, "database_time", lambda store: now)
    for since, seconds in ((now - timedelta(minutes=3), 180.0), (now + timedelta(seconds=1), 0.0)):

        def report_since(store: Store, since: datetime = since) -> Iterator[Finding]:
            yield Finding.of(Severity.WARNING, "no", since=since)

        use_rules(report_since)
        (problem,) = Verdict.now(STORE).problems
        assert problem.seconds == seconds


def test_the_verdict_as_json_has_every_field_of_a_finding() -> None:
    make_job()
    verdict = Verdict.now(STORE).as_json()
    assert (verdict["is_well"], verdict["problems"][0]["code"]) == (False, "no-worker")
    assert set(verdict["problems"][0]) == set(Finding.__dataclass_fields__)
