"""Rules about settings and limits of the server: each test makes a finding appear."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_skipqueue.console.rules import server
from django_skipqueue.console.rules.examination import RULES
from django_skipqueue.console.rules.rule import Finding, Rule
from django_skipqueue.queue.store import Store

from ...app.rows import make_worker
from ...harness.pgbouncer import PGBOUNCER
from ...queue.test_pgbouncer import pooled_alias  # noqa: F401 (a fixture)
from .conftest import STORE, FindingsOf, StoreOfRows


@pytest.fixture
def run_sql(transactional_db: None) -> Iterator[Any]:
    """Return a function that runs a statement in the test's session. The session is closed at the end of the test."""

    def run_statement(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    yield run_statement
    connection.close()


def fail_with_sql_error(store: Store) -> Iterator[Finding]:
    store.rows("SELECT nothing FROM nowhere")
    yield from ()


def test_unapplied_migrations_are_found(findings_of: FindingsOf, run_sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings_of("migrations") == []
    run_sql("UPDATE django_migrations SET app = 'hidden' WHERE app = 'django_skipqueue' AND name = '0001_initial'")
    try:
        (finding,) = findings_of("migrations")
        monkeypatch.setattr(
            "django_skipqueue.console.rules.examination.RULES", (*RULES, Rule("c", fail_with_sql_error, ""))
        )
        assert findings_of("check-failed") == [], "without its migrations, a rule may fail for lack of a table"
    finally:
        run_sql("UPDATE django_migrations SET app = 'django_skipqueue' WHERE app = 'hidden'")
    assert (finding.severity, finding.command) == ("critical", "python manage.py migrate django_skipqueue")
    assert "0001_initial" in finding.found


@pytest.mark.parametrize(("share", "severities"), [(0.0, []), (0.09, []), (0.2, ["warning"]), (0.7, ["critical"])])
def test_a_notification_queue_that_fills_up_is_found(share: float, severities: list[str]) -> None:
    findings = list(server.notify_queue(StoreOfRows((share,))))
    assert [finding.severity for finding in findings] == severities
    assert all(f"{round(share * 100)} % of it" in finding.found for finding in findings)


def test_workers_that_need_more_connections_than_the_server_allows_are_found(findings_of: FindingsOf) -> None:
    make_worker(name="web-1/1")
    make_worker(name="web-1/2")
    assert findings_of("connection-budget") == []
    make_worker(name="web-2/1", concurrency=5_000)
    (finding,) = findings_of("connection-budget")
    assert finding.severity == "warning"
    assert "3 worker processes and 2 supervisors open up to 5,013 connections" in finding.found
    assert "(max_connections)" in finding.found


def test_the_connection_limit_of_the_database_counts(findings_of: FindingsOf, run_sql: Any) -> None:
    name = connection.settings_dict["NAME"]
    make_worker(name="web-1/1", concurrency=60)
    run_sql(f'ALTER DATABASE "{name}" CONNECTION LIMIT 50')
    try:
        (finding,) = findings_of("connection-budget")
    finally:
        run_sql(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')
    assert "There are 50 (CONNECTION LIMIT of the database)" in finding.found


def test_a_server_with_few_connections_left_is_found(findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings_of("connections-used") == []
    monkeypatch.setattr(server, "SCARCE_CONNECTIONS_SHARE", 0.0)
    (finding,) = findings_of("connections-used")
    assert finding.severity == "critical"


@pytest.mark.skipif(not PGBOUNCER, reason="PgBouncer is not installed")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_pooler_in_transaction_mode_is_found(pooled_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(connections.settings, pooled_alias, connections[pooled_alias].settings_dict)
    assert list(server.pooler(STORE)) == []
    (finding,) = server.pooler(Store(pooled_alias))
    assert finding.severity == "info"


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
def test_an_autovacuum_that_is_turned_off_is_found(name: str) -> None:
    parameters = {"autovacuum": "on", "track_counts": "on"}
    assert list(server.autovacuum(StoreOfRows(*parameters.items()))) == []
    (finding,) = server.autovacuum(StoreOfRows(*(parameters | {name: "off"}).items()))
    assert finding.severity == "critical"
    assert finding.command.startswith(f'ALTER SYSTEM SET "{name}" = on;')


def test_a_session_that_is_idle_in_a_transaction_is_found(
    findings_of: FindingsOf, connect: Any, run_sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LONG_IDLE_SECONDS", 0.0)
    run_sql("SET idle_in_transaction_session_timeout = 0")
    assert findings_of("idle-transaction") == []
    idle_session = connect(autocommit=False, application_name="psql")
    idle_session.execute("SELECT pg_backend_pid(), 'half a thought'")
    (finding,) = findings_of("idle-transaction")
    assert finding.severity == "warning"
    assert "(psql, role " in finding.found
    assert "after: SELECT pg_backend_pid(), …. Its locks stay" in finding.found
    assert f"pg_terminate_backend({idle_session.info.backend_pid})" in finding.command
    run_sql("SET idle_in_transaction_session_timeout = '5min'")
    assert findings_of("idle-transaction") == [], "PostgreSQL ends the session itself"


def test_commits_that_do_not_wait_for_the_disk_are_found(findings_of: FindingsOf, run_sql: Any) -> None:
    run_sql("SET synchronous_commit = on")
    assert findings_of("synchronous-commit") == []
    run_sql("SET synchronous_commit = off")
    (finding,) = findings_of("synchronous-commit")
    assert finding.severity == "warning"
    assert "SET synchronous_commit = on;" in finding.command


def test_a_server_that_does_not_track_activities_is_found(findings_of: FindingsOf, run_sql: Any) -> None:
    run_sql("SET track_activities = off")
    assert [finding.severity for finding in findings_of("track-activities")] == ["warning"]
    run_sql("SET track_activities = on")
    assert findings_of("track-activities") == []
