"""After each test that commits, the test suite empties the tables that the test filled."""

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection

from django_skipqueue.models import Job

from .app.rows import make_job
from .harness.flush import truncate_filled

pytestmark = pytest.mark.django_db


def empty_filled_tables() -> list[str]:
    """Empty the tables of the models, and return the statements."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    statements = truncate_filled(connection.ops, no_style(), tables)
    connection.ops.execute_sql_flush(statements)
    return statements


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


def test_no_statement_is_sent_for_empty_tables() -> None:
    make_job()
    empty_filled_tables()
    assert empty_filled_tables() == []
