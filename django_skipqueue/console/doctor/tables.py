"""The queue's tables and indexes: dead rows, statistics, sizes, transaction ids and storage parameters."""

import re
import shlex
from collections.abc import Iterator

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext
from psycopg.sql import Identifier

from ...models.expressions import table_names
from ...queue.store import Store
from ..counts import grouped
from ..durations import span
from . import sql
from .finding import Finding, Severity, statement

MANY_DEAD = 10_000
"""Dead rows that a table may have, whatever its size. A fifth of its live rows may be dead as well."""

VACUUM_AGE = 600.0
"""Seconds within which autovacuum should have come to a table with many dead rows."""

UNANALYZED_BYTES = 8 * 1024**2
"""The size of a table of which the planner should know more than its size."""

LARGE_INDEX, HUGE_INDEX = 16 * 1024**2, 256 * 1024**2
"""Bytes that an index may have, however few entries it has, and bytes from which it is a warning."""

ENTRY_BYTES = 400
"""Bytes of an index for each of its entries above which it is bloated. A fresh index has 40 to 120."""

TRANSACTION_IDS_LEFT = 500_000_000
"""Of the two thousand million transaction ids: with fewer left, PostgreSQL will soon refuse to write."""

STORAGE = {
    "skipqueue_job": """\
ALTER TABLE skipqueue_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    fillfactor = 85
);""",
    "skipqueue_worker": """\
ALTER TABLE skipqueue_worker SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);""",
}
"""The statements of the migration, for the operator to paste."""


def dead_rows(store: Store) -> Iterator[Finding]:
    for name, live, dead, vacuum_age, analyze_age in store.rows(sql.VACUUMS, {"tables": table_names()}):
        if dead > max(MANY_DEAD, live / 5) and (vacuum_age is None or vacuum_age > VACUUM_AGE):
            yield Finding(
                "dead-rows",
                Severity.WARNING,
                gettext("Many dead rows in %(table)s") % {"table": name},
                gettext(
                    "%(dead)s rows are dead, and %(live)s are alive. Last vacuum: %(vacuum)s; last analyze: "
                    "%(analyze)s."
                )
                % {
                    "dead": grouped(dead),
                    "live": grouped(live),
                    "vacuum": _ago(vacuum_age),
                    "analyze": _ago(analyze_age),
                },
                gettext(
                    "Vacuum the table. If its dead rows stay, something holds an old snapshot: see the other findings."
                ),
                statement("VACUUM (VERBOSE, ANALYZE) {table};", table=Identifier(name)),
            )


def never_analyzed(store: Store) -> Iterator[Finding]:
    for name, size in store.rows(sql.NEVER_ANALYZED, {"tables": table_names(), "bytes": UNANALYZED_BYTES}):
        yield Finding(
            "never-analyzed",
            Severity.WARNING,
            gettext("The planner has no statistics of %(table)s") % {"table": name},
            gettext(
                "The table has %(size)s, and was never analyzed: after an upgrade of the server, or because autovacuum "
                "is off. A plan may read all of it."
            )
            % {"size": filesizeformat(size)},
            gettext("Analyze the table."),
            statement("ANALYZE {table};", table=Identifier(name)),
        )


def table_sizes(store: Store) -> Iterator[Finding]:
    sizes = [
        gettext("%(table)s: %(size)s, of which indexes %(indexes)s")
        % {"table": name, "size": filesizeformat(total), "indexes": filesizeformat(indexes)}
        for name, total, indexes in store.rows(sql.TABLE_SIZES, {"tables": table_names()})
    ]
    yield Finding("table-sizes", Severity.OK, gettext("Sizes of the tables"), "; ".join(sizes))


def bloated_indexes(store: Store) -> Iterator[Finding]:
    for name, size, entries in store.rows(sql.LARGE_INDEXES, {"tables": table_names(), "bytes": LARGE_INDEX}):
        if size > entries * ENTRY_BYTES + LARGE_INDEX:
            yield Finding(
                "index-bloat",
                Severity.WARNING if size >= HUGE_INDEX else Severity.INFO,
                gettext("The index %(index)s is mostly empty") % {"index": name},
                gettext(
                    "It has %(size)s for about %(entries)s entries. After a peak that is normal, and PostgreSQL uses "
                    "the space again; but the pages take room in memory."
                )
                % {"size": filesizeformat(size), "entries": grouped(entries)},
                gettext("Build it anew. Jobs are enqueued and claimed meanwhile."),
                shlex.join(["python", "manage.py", "skipqueue", "reindex", "--index", name]),
            )


def invalid_indexes(store: Store) -> Iterator[Finding]:
    for name, size in store.rows(sql.INVALID_INDEXES, {"tables": table_names()}):
        yield Finding(
            "invalid-index",
            Severity.WARNING,
            gettext("The index %(index)s is invalid") % {"index": name},
            gettext(
                "A build of it was interrupted. No query uses it, and every write maintains its %(size)s nevertheless."
            )
            % {"size": filesizeformat(size)},
            gettext("Remove what was left, and build the index anew."),
            "python manage.py skipqueue reindex",
        )


def transaction_ids(store: Store) -> Iterator[Finding]:
    for name, *measured in store.rows(sql.TRANSACTION_IDS, {"tables": table_names()}):
        age, multixact_age, limit, multixact_limit = measured
        if age > limit * 1.1 or multixact_age > multixact_limit * 1.1:
            is_critical = max(age, multixact_age) > 2**31 - TRANSACTION_IDS_LEFT
            yield Finding(
                "transaction-ids",
                Severity.CRITICAL if is_critical else Severity.WARNING,
                gettext("%(table)s was not frozen in time") % {"table": name},
                gettext(
                    "Its oldest transaction id is %(age)s transactions old (autovacuum freezes at %(limit)s), its "
                    "oldest multixact id %(multixact_age)s (%(multixact_limit)s). At about 2,100 million PostgreSQL "
                    "refuses to write."
                )
                % {
                    "age": grouped(age),
                    "limit": grouped(limit),
                    "multixact_age": grouped(multixact_age),
                    "multixact_limit": grouped(multixact_limit),
                },
                gettext("First end whatever holds an old snapshot, then vacuum the table."),
                statement("VACUUM (FREEZE, VERBOSE) {table};", table=Identifier(name)),
            )


def storage_parameters(store: Store) -> Iterator[Finding]:
    """Tables that have lost the storage parameters of our migration, or have autovacuum off."""
    for name, options in store.rows(sql.STORAGE_PARAMETERS, {"tables": table_names()}):
        given = dict(option.split("=", 1) for option in options)
        if given.get("autovacuum_enabled", "on") in ("off", "false", "no", "0"):
            yield Finding(
                "storage-parameters",
                Severity.CRITICAL,
                gettext("Autovacuum is off for %(table)s") % {"table": name},
                gettext("autovacuum_enabled is off for this table: nothing removes its dead rows."),
                gettext("Turn it on."),
                statement("ALTER TABLE {table} RESET (autovacuum_enabled);", table=Identifier(name)),
            )
        missing = [each for each in re.findall(r"(\w+) =", STORAGE.get(name, "")) if each not in given]
        if missing:
            yield Finding(
                "storage-parameters",
                Severity.WARNING,
                gettext("%(table)s lacks storage parameters") % {"table": name},
                gettext(
                    "The migrations have set %(missing)s, and somebody has reset that. Without it, autovacuum comes "
                    "too late to a table that changes so quickly."
                )
                % {"missing": ", ".join(missing)},
                gettext("Set them again."),
                STORAGE[name],
            )


def _ago(seconds: float | None) -> str:
    return gettext("never") if seconds is None else gettext("%(span)s ago") % {"span": span(seconds)}
