"""Rules about settings and limits of the server: each test makes a finding appear."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_skipqueue.console.rules import server
from django_skipqueue.console.rules.examination import RULES
from django_skipqueue.console.rules.rule import Finding, Rule
from django_skipqueue.queue.store import Store

from ..app.rows import make_worker
from ..harness.pgbouncer import PGBOUNCER
from ..store.test_pgbouncer import pooled_alias  # noqa: F401 (a fixture)
from .conftest import STORE, Found, Rows


@pytest.fixture
def run(transactional_db: None) -> Iterator[Any]:
    """Runs statements in a session that the fixture closes at the end of the test."""

    def execute(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    yield execute
    connection.close()


def _failing(store: Store) -> Iterator[Finding]:
    store.rows("SELECT nothing FROM nowhere")
    yield from ()


def test_migrations_that_are_not_applied(found: Found, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("migrations") == []
    run("UPDATE django_migrations SET app = 'hidden' WHERE app = 'django_skipqueue' AND name = '0001_initial'")
    try:
        (finding,) = found("migrations")
        monkeypatch.setattr("django_skipqueue.console.rules.examination.RULES", (*RULES, Rule("c", _failing, "")))
        assert found("check-failed") == [], "it may have failed for want of a table"
    finally:
        run("UPDATE django_migrations SET app = 'django_skipqueue' WHERE app = 'hidden'")
    assert (finding.severity, finding.command) == ("critical", "python manage.py migrate django_skipqueue")
    assert "0001_initial" in finding.found


@pytest.mark.parametrize(("share", "severities"), [(0.0, []), (0.09, []), (0.2, ["warning"]), (0.7, ["critical"])])
def test_the_queue_of_notifications(share: float, severities: list[str]) -> None:
    findings = list(server.notify_queue(Rows((share,))))
    assert [each.severity for each in findings] == severities
    assert all(f"{round(share * 100)} % of it" in each.found for each in findings)


def test_workers_that_need_more_connections_than_there_are(found: Found) -> None:
    make_worker(name="web-1/1")
    make_worker(name="web-1/2")
    assert found("connection-budget") == []
    make_worker(name="web-2/1", concurrency=5_000)
    (finding,) = found("connection-budget")
    assert finding.severity == "warning"
    assert "3 worker processes and 2 supervisors open up to 5,013 connections" in finding.found
    assert "(max_connections)" in finding.found


def test_a_limit_of_the_database_counts(found: Found, run: Any) -> None:
    name = connection.settings_dict["NAME"]
    make_worker(name="web-1/1", concurrency=60)
    run(f'ALTER DATABASE "{name}" CONNECTION LIMIT 50')
    try:
        (finding,) = found("connection-budget")
    finally:
        run(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')
    assert "There are 50 (CONNECTION LIMIT of the database)" in finding.found


def test_few_connections_that_are_left(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("connections-used") == []
    monkeypatch.setattr(server, "SCARCE_CONNECTIONS_SHARE", 0.0)
    (finding,) = found("connections-used")
    assert finding.severity == "critical"


@pytest.mark.skipif(not PGBOUNCER, reason="PgBouncer is not installed")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_pooler_in_transaction_mode(pooled_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(connections.settings, pooled_alias, connections[pooled_alias].settings_dict)
    assert list(server.pooler(STORE)) == []
    (finding,) = server.pooler(Store(pooled_alias))
    assert finding.severity == "info"


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
def test_autovacuum_is_off(name: str) -> None:
    both = {"autovacuum": "on", "track_counts": "on"}
    assert list(server.autovacuum(Rows(*both.items()))) == []
    (finding,) = server.autovacuum(Rows(*(both | {name: "off"}).items()))
    assert finding.severity == "critical"
    assert finding.command.startswith(f'ALTER SYSTEM SET "{name}" = on;')


def test_a_session_that_is_idle_in_a_transaction(
    found: Found, connect: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LONG_IDLE_SECONDS", 0.0)
    run("SET idle_in_transaction_session_timeout = 0")
    assert found("idle-transaction") == []
    other = connect(autocommit=False, application_name="psql")
    other.execute("SELECT pg_backend_pid(), 'half a thought'")
    (finding,) = found("idle-transaction")
    assert finding.severity == "warning"
    assert "(psql, role " in finding.found
    assert "after: SELECT pg_backend_pid(), …. Its locks stay" in finding.found
    assert f"pg_terminate_backend({other.info.backend_pid})" in finding.command
    run("SET idle_in_transaction_session_timeout = '5min'")
    assert found("idle-transaction") == [], "PostgreSQL ends it"


def test_commits_that_do_not_wait_for_the_disk(found: Found, run: Any) -> None:
    run("SET synchronous_commit = on")
    assert found("synchronous-commit") == []
    run("SET synchronous_commit = off")
    (finding,) = found("synchronous-commit")
    assert finding.severity == "warning"
    assert "SET synchronous_commit = on;" in finding.command


def test_activities_that_are_not_recorded(found: Found, run: Any) -> None:
    run("SET track_activities = off")
    assert [each.severity for each in found("track-activities")] == ["warning"]
    run("SET track_activities = on")
    assert found("track-activities") == []
