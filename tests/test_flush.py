"""After each test that commits, the test suite empties the tables that the test filled, and keeps the connection."""

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TransactionTestCase

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.session import backend_pid
from django_skipqueue.queue.store import Store

from .app.rows import make_job
from .harness import flush

pytestmark = pytest.mark.django_db


def empty_filled_tables() -> str:
    """Empty the tables of the models, and return the statements."""
    statements = flush.statements(connection)
    connection.ops.execute_sql_flush(statements)
    return "; ".join(statements)


def test_a_filled_table_is_emptied() -> None:
    make_job()
    empty_filled_tables()
    assert not Job.objects.exists()


def test_rows_that_migrate_writes_are_kept() -> None:
    permissions_before = set(Permission.objects.values_list("pk", "content_type_id"))
    assert permissions_before
    make_job()
    empty_filled_tables()
    assert not Job.objects.exists()
    assert set(Permission.objects.values_list("pk", "content_type_id")) == permissions_before


def test_a_large_table_is_truncated_with_the_tables_that_refer_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    User.objects.create_user("ann")
    monkeypatch.setattr(flush, "LARGE_TABLE_BYTES", 0)
    truncated_tables = empty_filled_tables().partition("TRUNCATE ")[2].split(", ")
    assert {"auth_user", "auth_user_groups"} <= set(truncated_tables)
    assert not User.objects.exists()


def test_no_statement_is_sent_for_empty_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job()
    monkeypatch.setattr(flush, "LARGE_TABLE_BYTES", 0)
    empty_filled_tables()
    assert empty_filled_tables() == ""
    monkeypatch.undo()
    make_job()
    statements = empty_filled_tables()
    assert f"DELETE FROM {Job._meta.db_table}" in statements
    assert Worker._meta.db_table not in statements


def pids_before_and_after_a_test() -> tuple[int, int]:
    """The process id of the session, before and after Django's clean-up at the end of a test."""
    pid_before = backend_pid(Store("default"))
    assert not TransactionTestCase._should_reload_connections(TransactionTestCase())  # type: ignore[attr-defined]
    return pid_before, backend_pid(Store("default"))


@pytest.mark.django_db(transaction=True)
def test_the_connection_is_kept_and_its_session_is_reset() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '7s'; SET TIME ZONE 'Asia/Tokyo'; LISTEN mail")
    pid_before, pid_after = pids_before_and_after_a_test()
    assert pid_before == pid_after
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout'), current_setting('TimeZone')")
        assert cursor.fetchone() == ("0", "UTC")
        cursor.execute("SELECT pg_listening_channels()")
        assert cursor.fetchall() == []


@pytest.mark.django_db(transaction=True)
def test_a_connection_with_an_open_transaction_or_other_settings_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.set_autocommit(False)
    pid_before, pid_after = pids_before_and_after_a_test()
    assert pid_before != pid_after
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "application_name", "x")
    connection.close()
    pid_before, pid_after = pids_before_and_after_a_test()
    assert pid_before != pid_after
