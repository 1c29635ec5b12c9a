"""`examine`: every rule is applied, and no rule can break another rule."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console.rules.examination import examine, rules_of
from django_skipqueue.console.rules.rule import Finding, Rule, Severity, shell_command, statement, without_values
from django_skipqueue.queue.store import Store

from ...app.rows import make_job, make_worker
from .broken_rules import fail_with_sql_error, sleep_a_minute
from .conftest import STORE, FindingsOf, sql_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def use_rules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes its arguments the only rules. The code of each rule is the name of its function."""

    def set_rules(*functions: Callable[[Store], Any]) -> None:
        rules = [Rule(function.__name__, function, "all is well") for function in functions]
        monkeypatch.setattr("django_skipqueue.console.rules.examination.rules_of", lambda _: rules)

    return set_rules


def pass_with_a_query(store: Store) -> Iterator[Finding]:
    store.rows("SELECT 1")
    yield from ()


@pytest.mark.usefixtures("new_tables")
def test_a_healthy_queue_has_one_ok_finding_for_each_rule() -> None:
    make_worker()
    findings = examine(STORE)
    assert [finding for finding in findings if finding.severity != Severity.OK] == []
    assert [finding.code for finding in findings] == [rule.code for rule in rules_of("default")]
    assert all(finding.title for finding in findings)


def test_findings_are_sorted_from_critical_to_ok() -> None:
    make_job("running", locked_at="2020-01-01T00:00Z")
    severities = [finding.severity for finding in examine(STORE)]
    assert severities == sorted(severities, key=list(Severity).index)
    assert severities[0] == "critical"
    assert severities[-1] == "ok"


def test_every_rule_has_a_code_of_its_own() -> None:
    codes = [rule.code for rule in rules_of("default")]
    assert len(set(codes)) == len(codes)


def test_a_rule_that_takes_too_long_is_reported_and_the_next_rule_runs(
    use_rules: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.console.rules.examination.RULE_SECONDS", 1.0)
    use_rules(sleep_a_minute, pass_with_a_query)
    late, fine = examine(STORE)
    assert (late.code, late.severity, late.title) == (
        "check-timed-out",
        "warning",
        "The check sleep_a_minute took too long",
    )
    assert (fine.code, fine.severity) == ("pass_with_a_query", "ok")


def test_many_slow_rules_are_cancelled_within_the_time_of_the_examination(
    use_rules: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.console.rules.examination.EXAMINATION_SECONDS", 4.0)
    use_rules(*[sleep_a_minute] * 19)
    started_at = time.monotonic()
    findings = examine(STORE)
    assert time.monotonic() - started_at < 10
    assert [finding.code for finding in findings] == ["check-timed-out"] * 19
    assert findings[0].found.startswith("It was cancelled after 1.0 s.")
    assert findings[18].found.startswith("It was cancelled after 100 ms.")


def test_a_rule_that_fails_is_reported_and_the_next_rule_runs(use_rules: Callable[..., None]) -> None:
    use_rules(fail_with_sql_error, pass_with_a_query)
    failed, fine = examine(STORE)
    assert (failed.code, failed.severity) == ("check-failed", "warning")
    assert "no_such_table" in failed.found
    assert fine.code == "pass_with_a_query"


def end_own_session(store: Store) -> Iterator[Finding]:
    store.rows("SELECT pg_terminate_backend(pg_backend_pid())")
    yield from ()


def test_after_a_rule_loses_its_session_the_next_rule_has_a_new_session(use_rules: Callable[..., None]) -> None:
    use_rules(end_own_session, pass_with_a_query)
    failed, fine = examine(STORE)
    assert failed.code == "check-failed"
    assert "terminating connection" in failed.found
    assert fine.code == "pass_with_a_query"


def test_a_server_that_goes_away_ends_the_examination(
    use_rules: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_server(store: Store) -> Iterator[Finding]:
        monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
        yield from end_own_session(store)

    use_rules(pass_with_a_query, lose_server, pass_with_a_query, pass_with_a_query)
    unusable, fine = examine(STORE)
    assert (unusable.code, unusable.severity) == ("database-unusable", "critical")
    assert fine.code == "pass_with_a_query"


def test_a_database_that_cannot_be_reached_is_the_only_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    (finding,) = examine(STORE)
    assert (finding.code, finding.severity) == ("database-unusable", "critical")
    assert "/nonexistent" in finding.found


def test_an_unknown_database_alias_is_the_only_finding() -> None:
    (finding,) = examine(Store("nosuch"))
    assert finding.code == "database-unusable"
    assert "nosuch" in finding.found


@pytest.mark.parametrize("in_transaction", [False, True])
def test_the_statement_timeout_is_restored_after_the_examination(in_transaction: bool) -> None:
    def statement_timeout() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return cursor.fetchone()[0]

    before = statement_timeout()
    if in_transaction:
        with transaction.atomic():
            examine(STORE)
            assert statement_timeout() == before
    else:
        examine(STORE)
        assert statement_timeout() == before


def test_the_number_of_queries_does_not_grow_with_the_jobs() -> None:
    def count_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            examine(STORE)
        return len(queries)

    def add_jobs(index: int) -> None:
        make_worker()
        make_job(queue_name=f"queue-{index}")
        make_job("running", locked_at="2020-01-01T00:00Z")

    add_jobs(0)
    before = count_queries()
    for index in range(1, 20):
        add_jobs(index)
    assert count_queries() == before


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("UPDATE shop SET token = 'hunter22' WHERE id = 7", "UPDATE shop SET token = …"),
        (r"SELECT E'it\'s', 'hunter22'", "SELECT E…"),
        ("SELECT $$hunter22$$", "SELECT …"),
        ("SELECT $a$hunter22$a$", "SELECT …"),
        ("SELECT card WHERE number = 4111111111111111", "SELECT card WHERE number = …"),
        ("SELECT card WHERE number = -.5", "SELECT card WHERE number = -.…"),
        ("SELECT t1.a FROM t1 WHERE b = $1", "SELECT t1.a FROM t1 WHERE b = $1"),
        ("COMMIT", "COMMIT"),
        ("", "?"),
    ],
)
def test_values_in_a_reported_sql_statement_are_hidden(query: str, shown: str) -> None:
    assert without_values(query) == shown


def test_sql_is_given_as_a_command_that_runs_it_in_its_database() -> None:
    sql = "ALTER SYSTEM SET autovacuum = on;\nSELECT pg_reload_conf();"
    assert shell_command(sql, "default") == (
        "python manage.py dbshell -- -c 'ALTER SYSTEM SET autovacuum = on;' -c 'SELECT pg_reload_conf();'"
    )
    assert shell_command("SELECT 1;", "queue_1") == "python manage.py dbshell --database queue_1 -- -c 'SELECT 1;'"
    assert shell_command("timedatectl status", "queue_1") == "timedatectl status"
    assert shell_command("", "default") == ""


def test_names_in_a_suggested_sql_statement_are_quoted() -> None:
    name = "x'; DROP TABLE skipqueue_job; --"
    assert statement("SELECT pg_drop_replication_slot({name});", name=name) == (
        "SELECT pg_drop_replication_slot('x''; DROP TABLE skipqueue_job; --');"
    )
    assert statement("ALTER ROLE {role};", role=psycopg.sql.Identifier('a"b')) == 'ALTER ROLE "a""b";'


@pytest.fixture
def plain_role(transactional_db: None) -> Iterator[str]:
    """Create a role that may only read the queue's tables. The connection has this role until the end of the test."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE doctor_plain")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO doctor_plain; SET ROLE doctor_plain")
        yield "doctor_plain"
        cursor.execute("RESET ROLE; DROP OWNED BY doctor_plain; DROP ROLE doctor_plain")


def test_a_role_that_can_only_read_the_queue_runs_all_rules(plain_role: str) -> None:
    codes = [rule.code for rule in rules_of("default")]
    findings = examine(STORE)
    assert {finding.code for finding in findings} >= set(codes) - {"hidden-sessions"}
    assert not [finding for finding in findings if finding.code.startswith("check-")]


def test_the_command_grants_a_role_the_right_to_see_other_sessions(
    plain_role: str, findings_of: FindingsOf, connect: Any
) -> None:
    connect()
    (finding,) = findings_of("hidden-sessions")
    assert finding.severity == "info"
    assert "than doctor_plain" in finding.found
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(sql_of(finding.command))
        cursor.execute("SET ROLE doctor_plain")
    assert findings_of("hidden-sessions") == []


def test_rules_on_an_unreadable_table_are_reported_and_the_other_rules_run(plain_role: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE; REVOKE SELECT ON skipqueue_job FROM doctor_plain; SET ROLE doctor_plain")
    findings = examine(STORE)
    refused = [finding for finding in findings if finding.code == "check-not-allowed"]
    assert {finding.title for finding in refused} >= {"The check long-job is not allowed"}
    assert "permission denied for table skipqueue_job" in refused[0].found
    assert [finding for finding in findings if finding.code == "table-sizes"]
