"""After each test that commits, the test suite empties the tables that the test filled."""

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection

from django_skipqueue.models import Job, Worker

from .app.rows import make_job
from .harness import flush

pytestmark = pytest.mark.django_db


def empty_filled_tables() -> str:
    """Empty the tables of the models, and return the statements."""
    statements = flush.statements(no_style(), connection)
    connection.ops.execute_sql_flush(statements)
    return "; ".join(statements)


def test_a_filled_table_is_emptied() -> None:
    make_job()
    empty_filled_tables()
    assert not Job.objects.exists()


def test_rows_that_migrate_writes_are_kept() -> None:
    before = set(Permission.objects.values_list("pk", "content_type_id"))
    assert before
    make_job()
    call_command("flush", interactive=False, reset_sequences=False)
    assert not Job.objects.exists()
    assert set(Permission.objects.values_list("pk", "content_type_id")) == before


def test_a_large_table_is_truncated_with_those_that_refer_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    User.objects.create_user("ann")
    monkeypatch.setattr(flush, "LARGE_TABLE_BYTES", 0)
    truncated = empty_filled_tables().partition("TRUNCATE ")[2].split(", ")
    assert {"auth_user", "auth_user_groups"} <= set(truncated)
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
