"""The migrations are complete and reversible, and make the tables and indexes of the design."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from .app.sessions import LAST_MIGRATION, schema

APP = "django_skipqueue"

# The columns of each index, and the rows that the index has, as PostgreSQL writes both.
INDEXES = {
    "skipqueue_job_pkey": "UNIQUE (id)",
    "skipqueue_job_claim": "(queue_name, ((- priority)), run_after, id) WHERE (status = 'queued')",
    "skipqueue_job_admit": "(run_after, id) WHERE (status = 'scheduled')",
    "skipqueue_job_blocked": "(id) WHERE (status = 'blocked')",
    "skipqueue_job_recover": "(locked_at) WHERE (status = 'running')",
    "skipqueue_job_prune": "(status, finished_at) WHERE (status = ANY (ARRAY['completed', 'failed', 'discarded']))",
    "skipqueue_job_prune_own": (
        "((((finished_at AT TIME ZONE 'UTC') + make_interval(secs => "
        "((retention ->> status))::double precision)))) "
        "WHERE ((retention IS NOT NULL) AND (status = ANY (ARRAY['completed', 'failed', 'discarded'])))"
    ),
    "skipqueue_job_failed": "(queue_name, finished_at DESC) WHERE (status = 'failed')",
    "skipqueue_job_cause": (
        "(hashtextextended(((((task || ' ') || COALESCE(((errors -> '-1'::integer) ->> 'exception'), '')) || "
        "' ') || COALESCE(((errors -> '-1'::integer) ->> 'place'), '')), (0)::bigint), status, id) "
        "WHERE ((status = 'failed') OR ((attempts > 0) AND (status = 'scheduled')))"
    ),
    "skipqueue_job_batch": "(batch_id, status, id) WHERE (batch_id IS NOT NULL)",
    "skipqueue_job_limit_held": (
        "(limit_key) WHERE ((limit_key IS NOT NULL) AND ((status = ANY (ARRAY['queued', 'running'])) "
        "OR (gate = 'rate') "
        "OR (((started_at IS NOT NULL) OR (attempts > 0)) AND (limit_kind = ANY (ARRAY['sequence', 'halting'])) "
        "AND ((status = 'scheduled') OR (gate = 'held'))) "
        "OR ((limit_kind = 'halting') AND (status = 'failed'))))"
    ),
    "skipqueue_job_limit_waiting": (
        "(limit_key, (\nCASE\n    WHEN (limit_kind = ANY (ARRAY['concurrency', 'fair'])) THEN ((- priority))::integer\n"
        "    WHEN ((started_at IS NOT NULL) OR (attempts > 0)) THEN '-1'::integer\n    ELSE 0\nEND), id) "
        "WHERE ((gate = 'limit') AND (limit_key IS NOT NULL))"
    ),
    "skipqueue_job_halted": "(finished_at, id) WHERE ((limit_kind = 'halting') AND (status = 'failed'))",
    "skipqueue_job_rate_waiting": (
        "(rate_key, ((- priority)), run_after, id) WHERE ((gate = 'rate') AND (rate_key IS NOT NULL))"
    ),
    "skipqueue_job_rate_queued": "(rate_key) WHERE ((rate_key IS NOT NULL) AND (status = 'queued'))",
    "skipqueue_job_unique": (
        "UNIQUE (unique_key) WHERE ((unique_key IS NOT NULL) AND ((unique_seconds > (0.0)::double precision) "
        "OR ((finished_at IS NULL) AND ((unique_seconds IS NULL) OR (lease = 0)))))"
    ),
    "skipqueue_worker_pkey": "UNIQUE (id)",
    "skipqueue_worker_id_43c5465b_like": "(id text_pattern_ops)",  # Django makes it for every unique text column
}


def query(statement: str, alias: str = "default") -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


@pytest.mark.django_db
def test_the_models_have_no_change_without_a_migration() -> None:
    call_command("makemigrations", APP, "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db
class TestTables:
    def test_the_job_and_worker_tables_have_exactly_the_indexes_of_the_design(self) -> None:
        indexes = {
            name: re.sub(r"(?s)^CREATE (UNIQUE )?INDEX .* USING btree (.*)$", r"\1\2", definition).replace("::text", "")
            for name, definition in query(
                "SELECT indexname, indexdef FROM pg_indexes "
                "WHERE tablename IN ('skipqueue_job', 'skipqueue_worker') AND schemaname = 'public'"
            )
        }
        assert indexes == INDEXES

    def test_the_storage_parameters_are_set(self) -> None:
        parameters = {
            table: dict(option.split("=") for option in options)
            for table, options in query(
                "SELECT relname, reloptions FROM pg_class "
                "WHERE oid IN ('skipqueue_job'::regclass, 'skipqueue_worker'::regclass)"
            )
        }
        assert parameters == {
            "skipqueue_job": {
                "autovacuum_vacuum_scale_factor": "0.01",
                "autovacuum_vacuum_threshold": "2000",
                "autovacuum_vacuum_insert_scale_factor": "0.05",
                "autovacuum_analyze_scale_factor": "0.02",
                "autovacuum_analyze_threshold": "2000",
                "autovacuum_vacuum_cost_delay": "0",
                "fillfactor": "85",
            },
            "skipqueue_worker": {
                "fillfactor": "50",
                "autovacuum_vacuum_scale_factor": "0",
                "autovacuum_vacuum_threshold": "500",
            },
        }

    def test_the_job_table_has_no_foreign_key_and_no_trigger(self) -> None:
        """At every change of a job, a foreign key would lock a row of the other table, and a trigger would run."""
        assert (
            query(
                "SELECT conname FROM pg_constraint "
                "WHERE contype = 'f' AND 'skipqueue_job'::regclass IN (conrelid, confrelid)"
            )
            == []
        )
        assert query("SELECT tgname FROM pg_trigger WHERE tgrelid = 'skipqueue_job'::regclass") == []

    def test_the_id_is_a_bigint_identity(self) -> None:
        assert query(
            "SELECT data_type, is_identity FROM information_schema.columns "
            "WHERE table_name = 'skipqueue_job' AND column_name = 'id' AND table_schema = 'public'"
        ) == [("bigint", "YES")]


@pytest.fixture
def migrate(db: None) -> Iterator[Callable[[str | None], None]]:
    """A function that migrates the app, in a new schema, to a migration; `None` reverses all migrations."""
    with schema("migrating") as migrate:
        yield migrate


def described_tables() -> dict[str, Any]:
    """The tables of the schema, as PostgreSQL's catalogue describes them."""
    return {
        "relations": query(
            "SELECT relname, relkind, reloptions, pg_get_indexdef(oid) FROM pg_class "
            "WHERE relnamespace = 'migrating'::regnamespace AND relname LIKE 'skipqueue%' ORDER BY relname"
        ),
        "columns": query(
            "SELECT table_name, column_name, data_type, column_default FROM information_schema.columns "
            "WHERE table_schema = 'migrating' AND table_name LIKE 'skipqueue%' ORDER BY 1, 2"
        ),
        "constraints": query(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'migrating'::regnamespace AND conname LIKE 'skipqueue%' ORDER BY conname"
        ),
    }


def test_migrating_to_zero_and_back_makes_the_same_tables(migrate: Callable[[str | None], None]) -> None:
    migrate(LAST_MIGRATION)
    tables = described_tables()
    assert len(tables["relations"]) > 8
    migrate(None)
    assert described_tables() == {"relations": [], "columns": [], "constraints": []}
    migrate(LAST_MIGRATION)
    assert described_tables() == tables


@pytest.mark.django_db(databases=["default", "other"])
def test_every_postgresql_database_of_the_project_has_the_tables() -> None:
    assert query("SELECT count(*) FROM skipqueue_job", "other") == [(0,)]


MIGRATE_SQLITE = """
import django
from django.conf import settings
from django.core.management import call_command

databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(INSTALLED_APPS=["django_skipqueue"], DATABASES=databases, USE_TZ=True)
django.setup()
call_command("migrate", verbosity=0)
call_command("migrate", "django_skipqueue", "zero", verbosity=0)
"""


def test_a_sqlite_database_of_the_project_can_be_migrated() -> None:
    """A project may have another database, in which `migrate --database` makes the tables of every app."""
    command = [sys.executable, "-c", MIGRATE_SQLITE]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
