"""How much of the database's load is the queue's: by the statistics of its tables, and of its statements."""

from collections.abc import Iterator
from typing import NamedTuple

from django.utils.translation import gettext

from ..models.tables import table_names
from ..store import Store
from . import load_sql
from .finding import Finding, Severity


class Share(NamedTuple):
    """A number since the statistics were reset: of the queue, and of the whole database with it."""

    queue: float
    database: float

    @property
    def percent(self) -> str:
        return f"{100 * self.queue / self.database:.0f}" if self.database else "0"


class TableLoad(NamedTuple):
    rows_written: Share
    """Rows inserted, updated and deleted."""
    pages_read: Share
    """Pages of 8 kB that PostgreSQL did not have in its memory."""
    pages_hit: Share
    """Pages that it had."""


def table_load(store: Store) -> TableLoad:
    """Read two views of statistics, of the queue's tables alone."""
    (row,) = store.rows(load_sql.TABLE_LOAD, {"tables": table_names()})
    return TableLoad(*(Share(of_queue, of_all) for of_queue, of_all in zip(row[:3], row[3:], strict=True)))


def statement_seconds(store: Store) -> Share | None:
    """The seconds of the statements that name the queue's tables, by `pg_stat_statements`.

    `None` where that is not installed or not loaded, and where this role may not read every statement.
    """
    for (schema,) in store.rows(load_sql.STATEMENTS_SCHEMA):
        ((of_queue, of_all, is_hidden),) = store.rows(load_sql.STATEMENT_TIMES.format(schema=schema), {})
        return None if is_hidden else Share(of_queue, of_all)
    return None


def database_load(store: Store) -> Iterator[Finding]:
    tables, statements = table_load(store), statement_seconds(store)
    found = gettext(
        "Of what was done in this database since its statistics were reset, the queue's tables have %(written)s %% of "
        "the rows written, %(read)s %% of the pages read from the disk, and %(hit)s %% of those found in memory."
    ) % {
        "written": tables.rows_written.percent,
        "read": tables.pages_read.percent,
        "hit": tables.pages_hit.percent,
    }
    if statements is None:
        found += " " + gettext("The time of statements is not known: pg_stat_statements is not there, or hides some.")
    else:
        found += " " + gettext("Its statements took %(percent)s %% of the time of all.") % {
            "percent": statements.percent
        }
    yield Finding("database-load", Severity.OK, gettext("The queue's part of the database's load"), found)
