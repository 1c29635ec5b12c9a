"""Rules about tables and indexes: each test makes a finding appear, and runs its command, which solves the problem."""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_skipqueue.console.rules import tables
from django_skipqueue.models import Job
from django_skipqueue.models.expressions import table_names

from ...app.rows import make_job
from ...app.waiting import wait_until
from .conftest import STORE, FindingsOf, StoreOfRows, run_sql


@pytest.fixture
def table(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a table that autovacuum ignores, and let the rules take it for the queue's only table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE doctor_table WITH (autovacuum_enabled = off) AS SELECT id FROM generate_series(1, 1000) AS id"
        )
        cursor.execute("SELECT pg_stat_force_next_flush()")
        monkeypatch.setattr(tables, "table_names", lambda: ["doctor_table"])
        yield "doctor_table"
        cursor.execute("DROP TABLE doctor_table")


@pytest.fixture
def partition(transactional_db: None, connect: Any) -> Iterator[str]:
    """Make an empty partition of the archive's table. The rules know only the name of the archive's table."""
    name = "doctor_part"
    bounds = "FOR VALUES FROM ('1999-1-1') TO ('1999-2-1')"
    connect().execute(f"CREATE TABLE {name} PARTITION OF skipqueue_archivedjob {bounds}")
    yield name
    connect().execute(f"DROP TABLE {name}")


def test_partitions_of_the_archive_are_examined_like_tables(
    partition: str, findings_of: FindingsOf, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in (tables.VACUUMS, tables.TRANSACTION_IDS, tables.STORAGE_PARAMETERS):
        assert partition in {name for name, *_ in STORE.rows(statement, {"tables": table_names()})}
    other_session = connect()
    other_session.execute(f"ALTER TABLE {partition} SET (autovacuum_enabled = off)")
    (finding,) = findings_of("storage-parameters")
    assert finding.title == f"Autovacuum is off for {partition}"
    monkeypatch.setattr(tables, "LARGE_INDEX", -1)
    monkeypatch.setattr(tables, "ENTRY_BYTES", -1)  # now every index counts as bloated
    other_session.execute(f"VACUUM {partition}")
    assert any(f"--index {partition}_" in finding.command for finding in findings_of("index-bloat"))
    other_session.execute(f"CREATE INDEX doctor_part_broken ON {partition} (finished_at)")
    other_session.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'doctor_part_broken'::regclass")
    assert [finding.title for finding in findings_of("invalid-index")] == ["The index doctor_part_broken is invalid"]


def test_all_tables_of_the_app_are_examined() -> None:
    assert {"skipqueue_job", "skipqueue_worker"} <= set(table_names())


def test_a_table_with_many_dead_rows_is_found_until_it_is_vacuumed(
    table: str, findings_of: FindingsOf, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings_of("dead-rows") == []
    monkeypatch.setattr(tables, "MANY_DEAD_ROWS", 500)
    other_session = connect()
    other_session.execute("DELETE FROM doctor_table WHERE id > 100")
    other_session.execute("SELECT pg_stat_force_next_flush()")
    (finding,) = wait_until(lambda: findings_of("dead-rows"), "the statistics are written")
    assert finding.severity == "warning"
    assert "900 rows are dead, and 100 are alive. Last vacuum: never" in finding.found
    run_sql(finding.command)
    wait_until(lambda: not findings_of("dead-rows"), "the table is vacuumed")


@pytest.mark.parametrize(
    # The numbers of live and dead rows, the seconds since the last vacuum, and the expected number of findings.
    ("live", "dead", "vacuum_age", "expected"),
    [
        (0, 9_000, None, 0),
        (0, 11_000, None, 1),
        (0, 11_000, 60.0, 0),
        (0, 11_000, 700.0, 1),
        (1_000_000, 150_000, None, 0),
        (1_000_000, 250_000, 3_600.0, 1),
    ],
)
def test_dead_rows_are_found_if_they_are_many_and_the_last_vacuum_is_long_ago(
    live: int, dead: int, vacuum_age: float | None, expected: int
) -> None:
    assert len(list(tables.dead_rows(StoreOfRows(("t", live, dead, vacuum_age, 1.0))))) == expected


def test_a_large_table_that_was_never_analyzed_is_found(
    table: str, findings_of: FindingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings_of("never-analyzed") == [], "a small table or index does not count"
    monkeypatch.setattr(tables, "UNANALYZED_BYTES", 1)
    (finding,) = findings_of("never-analyzed")
    run_sql(finding.command)
    assert findings_of("never-analyzed") == []


def test_the_sizes_of_tables_are_always_reported(db: None) -> None:
    (finding,) = tables.table_sizes(STORE)
    assert finding.severity == "ok"
    assert re.search(r"skipqueue_job: [\d.]+\xa0[KM]B, of which indexes [\d.]+\xa0[KM]B", finding.found)


def entries_after_vacuum(connection: psycopg.Connection[Any]) -> float:
    """Vacuum the job table and return the number of entries in its claim index.

    Callers must repeat this, because an automatic ANALYZE may hold a snapshot that keeps dead rows.
    """
    connection.execute("VACUUM (INDEX_CLEANUP ON) skipqueue_job")
    row = connection.execute("SELECT reltuples FROM pg_class WHERE relname = 'skipqueue_job_claim'").fetchone()
    assert row is not None
    return float(row[0])


@pytest.mark.usefixtures("new_tables")
def test_a_large_index_that_is_mostly_empty_is_found(
    findings_of: FindingsOf, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job.objects.bulk_create(Job(task="t", queue_name="q", status="queued") for _ in range(2_000))
    Job.objects.all()._raw_delete("default")
    other_session = connect()
    wait_until(lambda: entries_after_vacuum(other_session) == 0)
    assert findings_of("index-bloat") == [], "a small table or index does not count"
    monkeypatch.setattr(tables, "LARGE_INDEX", 50_000)
    finding_by_command = {finding.command: finding for finding in findings_of("index-bloat")}
    claim_index_finding = finding_by_command["python manage.py skipqueue reindex --index skipqueue_job_claim"]
    assert claim_index_finding.severity == "info"
    assert "for about 0 entries" in claim_index_finding.found
    monkeypatch.setattr(tables, "HUGE_INDEX", 50_000)
    assert {finding.severity for finding in findings_of("index-bloat")} == {"warning"}
    other_session.execute("REINDEX TABLE skipqueue_job")
    other_session.execute("VACUUM skipqueue_job")
    assert findings_of("index-bloat") == []


@pytest.mark.parametrize(("index_bytes", "entries", "expected"), [(10**8, 10**6, 0), (10**8, 10**5, 1), (10**7, 0, 0)])
def test_an_index_is_bloated_if_it_is_far_larger_than_its_entries(
    index_bytes: int, entries: int, expected: int
) -> None:
    assert len(list(tables.bloated_indexes(StoreOfRows(("i", index_bytes, entries))))) == expected


def test_an_index_whose_build_failed_is_found(findings_of: FindingsOf, connect: Any) -> None:
    for _ in range(2):
        make_job(queue_name="same")
    other_session = connect()
    with pytest.raises(psycopg.errors.UniqueViolation):
        other_session.execute("CREATE UNIQUE INDEX CONCURRENTLY doctor_table ON skipqueue_job (queue_name)")
    try:
        (finding,) = findings_of("invalid-index")
        assert (finding.severity, finding.title) == ("warning", "The index doctor_table is invalid")
    finally:
        other_session.execute("DROP INDEX doctor_table")
    assert findings_of("invalid-index") == []


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("age", "multixact_age", "severities"),
    [
        (150 * MILLION, 1, []),
        (215 * MILLION, 1, []),
        (300 * MILLION, 1, ["warning"]),
        (1, 500 * MILLION, ["warning"]),
        (1_900 * MILLION, 1, ["critical"]),
    ],
)
def test_a_table_with_old_unfrozen_transaction_ids_is_found(
    age: int, multixact_age: int, severities: list[str]
) -> None:
    row = ("skipqueue_job", age, multixact_age, 200 * MILLION, 400 * MILLION)
    findings = list(tables.transaction_ids(StoreOfRows(row)))
    assert [finding.severity for finding in findings] == severities
    assert all(finding.command == 'VACUUM (FREEZE, VERBOSE) "skipqueue_job";' for finding in findings)


@pytest.mark.parametrize("table", tables.STORAGE_STATEMENTS)
def test_lost_storage_parameters_are_found_and_the_command_restores_them(findings_of: FindingsOf, table: str) -> None:
    assert findings_of("storage-parameters") == []
    run_sql(f"ALTER TABLE {table} RESET (fillfactor, autovacuum_vacuum_threshold)")
    (finding,) = findings_of("storage-parameters")
    assert finding.severity == "warning"
    assert "fillfactor" in finding.found
    run_sql(finding.command)
    assert findings_of("storage-parameters") == []


def test_a_table_with_autovacuum_turned_off_is_critical(findings_of: FindingsOf) -> None:
    run_sql("ALTER TABLE skipqueue_job SET (autovacuum_enabled = off)")
    (finding,) = findings_of("storage-parameters")
    assert finding.severity == "critical"
    run_sql(finding.command)
    assert findings_of("storage-parameters") == []


def test_the_commands_for_storage_parameters_are_the_statements_of_the_migration() -> None:
    migration: Any = import_module("django_skipqueue.migrations.0001_initial")
    in_migration = [f"{statement.strip()};" for statement in (migration.JOB_STORAGE, migration.WORKER_STORAGE)]
    assert list(tables.STORAGE_STATEMENTS.values()) == in_migration
