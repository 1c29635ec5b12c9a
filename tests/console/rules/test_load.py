"""How much of the database's load comes from the queue, according to the statistics of PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.console.rules import tables
from django_skipqueue.console.rules.examination import examine
from django_skipqueue.console.rules.tables import Share, TableLoad, statement_seconds, table_load

from ...app.rows import make_job, multiply
from ...app.waiting import wait_until
from .conftest import STORE, StoreOfRows

pytestmark = pytest.mark.django_db(transaction=True)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def current_load() -> TableLoad:
    execute("SELECT pg_stat_force_next_flush()")
    return table_load(STORE)


def test_writes_to_the_job_table_count_as_load_of_the_queue() -> None:
    before = current_load()
    multiply(make_job(), 999)

    def is_counted() -> bool:
        return current_load().rows_written.queue >= before.rows_written.queue + 1_000

    wait_until(is_counted, "PostgreSQL has counted the rows")
    after = current_load()
    assert after.pages_hit.queue > before.pages_hit.queue
    for share in after:
        assert 0 <= share.queue <= share.database
    assert after.rows_written.database >= before.rows_written.database + 1_000


def test_writes_to_other_tables_count_as_load_of_the_database_only() -> None:
    execute("CREATE TABLE other_table AS SELECT FROM generate_series(1, 5000)")
    try:
        before = current_load()
        execute("INSERT INTO other_table SELECT FROM generate_series(1, 5000)")

        def is_counted() -> bool:
            return current_load().rows_written.database >= before.rows_written.database + 5_000

        wait_until(is_counted, "PostgreSQL has counted the rows")
        assert current_load().rows_written.queue < before.rows_written.queue + 5_000
    finally:
        execute("DROP TABLE other_table")


def has_extension() -> bool:
    return bool(STORE.rows(tables.STATEMENTS_SCHEMA))


def test_statement_times_are_read_from_pg_stat_statements() -> None:
    if not has_extension():
        pytest.skip("pg_stat_statements is not installed and loaded in this database")
    before = statement_seconds(STORE)
    assert before is not None
    execute("SELECT pg_sleep(0.2) /* skipqueue_job */")
    after = statement_seconds(STORE)
    assert after is not None
    assert after.queue >= before.queue + 0.2
    assert after.database >= after.queue


def test_without_pg_stat_statements_statement_times_are_unknown() -> None:
    if has_extension():
        pytest.skip("pg_stat_statements is installed and loaded in this database")
    assert statement_seconds(STORE) is None
    (finding,) = [finding for finding in examine(STORE) if finding.code == "database-load"]
    assert finding.severity == "ok"
    assert "pg_stat_statements is not there" in finding.found


@pytest.fixture
def schema() -> Iterator[str]:
    """Create a table in place of the view `pg_stat_statements`, with rows of several databases; yield its schema."""
    execute(
        'CREATE SCHEMA "stand in"; CREATE TABLE "stand in".pg_stat_statements AS'
        " SELECT (SELECT oid FROM pg_database WHERE datname = current_database()) AS dbid, query, total_exec_time FROM"
        " (VALUES ('SELECT FROM skipqueue_job', 1500::float8), ('UPDATE \"skipqueue_worker\" SET pid = $1', 500),"
        " ('SELECT skipqueueing', 6000)) AS stat (query, total_exec_time)"
        " UNION ALL SELECT 1, 'SELECT FROM skipqueue_job', 9000"
    )
    yield '"stand in"'
    execute('DROP SCHEMA "stand in" CASCADE')


def test_statements_that_name_a_table_of_the_queue_count_as_its_own(schema: str) -> None:
    statement = tables.STATEMENT_TIMES.format(schema=schema)
    seconds_of_queue, seconds_of_database, is_hidden = 2.0, 8.0, False
    assert STORE.rows(statement, {}) == [(seconds_of_queue, seconds_of_database, is_hidden)]
    execute(f"INSERT INTO {schema}.pg_stat_statements SELECT dbid, '<insufficient privilege>', 1 FROM {schema}."
            "pg_stat_statements WHERE dbid > 1 LIMIT 1")  # fmt: skip
    [(*_, is_hidden)] = STORE.rows(statement, {})
    assert is_hidden


def test_statement_times_are_unknown_if_some_statements_are_hidden(monkeypatch: Any) -> None:
    schema_rows, time_rows = [("public",)], [(1.0, 2.0, True)]

    def rows(statement: str, values: Any = None) -> list[Any]:
        return schema_rows if statement == tables.STATEMENTS_SCHEMA else time_rows

    store = StoreOfRows()
    monkeypatch.setattr(store, "rows", rows)
    assert statement_seconds(store) is None
    time_rows[0] = (1.0, 2.0, False)
    assert statement_seconds(store) == Share(1.0, 2.0)


def test_the_percentage_of_an_empty_total_is_zero() -> None:
    assert Share(0, 0).percent == "0"
    assert Share(1, 3).percent == "33"
