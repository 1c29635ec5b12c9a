"""Move pruned jobs to the archive, and create and drop the archive's partitions, one per month in UTC.

The partition of a month exists before its first job finishes. Once the last of its jobs is past the archive's
retention, a process drops the whole partition. Without an archive, no partition is created or dropped.

Any number of supervisors and `prunejobs` commands may use this module at the same time. None waits longer than a second
for a lock.
"""

import logging
import time
from collections.abc import Callable

from django.db import DatabaseError, transaction

from ...conf import settings
from ...events.log_format import in_a_line, in_words
from ...events.logs import write
from ...queue.fragments import FINISHED_LIST, FINISHED_ROWS, PIECES, joined
from ...queue.parameters import as_array
from ...queue.session import SET_LOCK_TIMEOUT
from ...queue.store import Store
from ...worker.loop import Periodic
from .models import ArchivedJob

_COLUMNS = ", ".join(field.attname for field in ArchivedJob._meta.local_concrete_fields if field.attname != "records")

# Sent by the supervisor, prunejobs, in the transaction of `EXPIRED`. Returns the number of pruned jobs, by status. A
# single statement moves the rows, so that a job is always in exactly one of the tables. A job that is also past the
# archive's retention (NULL means for ever) is only deleted, because its partition may already be dropped. Index: the
# primary key.
ARCHIVE = joined(
    """
WITH pruned AS (
    DELETE FROM skipqueue_job
    WHERE id = ANY (ARRAY (SELECT unnest(%(ids)s::bigint[])))
    RETURNING *
), archived AS (
    INSERT INTO skipqueue_archivedjob ({columns}, records)
    SELECT {columns}, {kept_records}
    FROM pruned
    WHERE %(kept)s::interval IS NULL OR finished_at > statement_timestamp() - %(kept)s::interval
){after_prune}
SELECT status, count(*) FROM pruned GROUP BY status
""",
    columns=_COLUMNS,
    kept_records=PIECES["kept_records"],
    after_prune=PIECES["after_prune"],
)

# Sent by the supervisor, prunejobs, before they create partitions. Only one process at a time creates partitions. The
# lock does not block readers or writers.
LOCK_ARCHIVE = "LOCK TABLE skipqueue_archivedjob IN SHARE UPDATE EXCLUSIVE MODE"

# Sent by the supervisor, prunejobs. Returns the two commands that make each missing partition, the oldest partition
# first. The archive needs a partition for the current month, for the `ahead` months after it, and for each month with
# finished jobs, which a few probes find. PostgreSQL shows the bounds of a partition as a text, such as FOR VALUES FROM
# ('2026-01-01 …') TO ('2026-02-01 …'). CREATE TABLE … PARTITION OF would lock readers out; ATTACH PARTITION does not.
# Index: prune.
MISSING_PARTITIONS = joined(
    """
WITH RECURSIVE finished AS (
    SELECT each_status.status, oldest.finished_at
    FROM
        (VALUES {kinds}) AS each_status (status),
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ({finished})
                AND status = each_status.status
                AND finished_at > coalesce(statement_timestamp() - %(kept)s::interval, '-infinity')
                AND finished_at <= statement_timestamp()
            ORDER BY finished_at
            LIMIT 1
        ) AS oldest
    UNION ALL
    SELECT finished.status, first_of_later_month.finished_at
    FROM
        finished,
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ({finished})
                AND status = finished.status
                AND finished_at >= (date_trunc('month', finished.finished_at AT TIME ZONE 'UTC') + interval '1 month')
                    AT TIME ZONE 'UTC'
                AND finished_at <= statement_timestamp()
            ORDER BY finished_at
            LIMIT 1
        ) AS first_of_later_month
), needed (month) AS (
    SELECT date_trunc('month', finished_at AT TIME ZONE 'UTC') FROM finished
    UNION
    SELECT date_trunc('month', statement_timestamp() AT TIME ZONE 'UTC') + months * interval '1 month'
    FROM generate_series(0, %(ahead)s) AS months
), archive AS (
    SELECT oid, oid::regclass AS name, relnamespace::regnamespace AS schema
    FROM pg_class
    WHERE oid = 'skipqueue_archivedjob'::regclass
), existing AS (
    SELECT
        coalesce(substring(bounds FROM 'FROM [(]''([^'']+)''')::timestamptz, '-infinity') AS first,
        coalesce(substring(bounds FROM 'TO [(]''([^'']+)''')::timestamptz, 'infinity') AS after
    FROM
        archive,
        pg_inherits,
        LATERAL (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = inhrelid) AS part (bounds)
    WHERE inhparent = archive.oid
), missing AS (
    SELECT
        month AT TIME ZONE 'UTC' AS first,
        (month + interval '1 month') AT TIME ZONE 'UTC' AS after,
        'skipqueue_archivedjob_' || to_char(month, 'YYYY_MM') AS partition
    FROM needed
)
SELECT
    format('CREATE TABLE IF NOT EXISTS %%s.%%I (LIKE %%s INCLUDING ALL)', schema, partition, name),
    format(
        'ALTER TABLE %%s ATTACH PARTITION %%s.%%I FOR VALUES FROM (%%L) TO (%%L)',
        name, schema, partition, first, after
    )
FROM missing, archive
WHERE NOT EXISTS (SELECT FROM existing WHERE existing.first < missing.after AND existing.after > missing.first)
ORDER BY missing.first
""",
    kinds=FINISHED_ROWS,
    finished=FINISHED_LIST,
)

# Sent by the supervisor, prunejobs. Returns the command that drops the oldest partition, if all of its rows are past
# the archive's retention. The catalog has one row per partition.
EXPIRED_PARTITION = """
SELECT format('DROP TABLE IF EXISTS %%s', inhrelid::regclass)
FROM
    pg_inherits,
    LATERAL (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = inhrelid) AS part (bounds),
    LATERAL (SELECT substring(bounds FROM 'TO [(]''([^'']+)''')::timestamptz) AS until (after)
WHERE
    inhparent = 'skipqueue_archivedjob'::regclass
    AND after <= statement_timestamp() - %(kept)s::interval
ORDER BY after
LIMIT 1
"""


ARCHIVE_LOCK_TIMEOUT = "1s"
"""How long a statement waits for a lock, in PostgreSQL's notation. It is short, because other transactions queue up
behind a transaction that waits for a lock on the archive."""

MONTHS_AHEAD = 2

PARTITIONS_SECONDS = 3600.0
"""Seconds between two checks of the partitions."""

PARTITIONS_RETRY_SECONDS = 60.0
"""Seconds until the next try if partitions could not be created."""


def archive(store: Store, ids: list[int]) -> dict[str, int] | None:
    """Move these jobs to the archive. Return their number by status; `None` if there is no archive."""
    if not settings.has_archive:
        return None
    return dict(store.rows(ARCHIVE, {"ids": as_array(ids), "kept": settings.archive_retention}))


def make_partitions(store: Store, *, ahead: int = 0) -> int:
    """Create missing partitions up to `ahead` months from now. Return the number of created partitions.

    Raises a `DatabaseError` if another transaction holds a lock, or the role may not create tables.
    """
    values = {"ahead": ahead, "kept": settings.archive_retention}
    if not store.rows(MISSING_PARTITIONS, values):
        return 0
    with transaction.atomic(using=store.alias):
        store.execute(SET_LOCK_TIMEOUT, {"timeout": ARCHIVE_LOCK_TIMEOUT})
        store.execute(LOCK_ARCHIVE)
        missing = store.rows(MISSING_PARTITIONS, values)
        for create, attach in missing:
            store.execute(create)
            store.execute(attach)
    return len(missing)


def drop_partition(store: Store) -> bool:
    """Drop the oldest partition that is past the archive's retention. Return whether there was one."""
    for (drop,) in store.rows(EXPIRED_PARTITION, {"kept": settings.archive_retention}):
        with transaction.atomic(using=store.alias):
            store.execute(SET_LOCK_TIMEOUT, {"timeout": ARCHIVE_LOCK_TIMEOUT})
            store.execute(drop)
        return True
    return False


def partitions_not_made(error: BaseException, retry_in: float) -> None:
    """Log that a partition of the archive could not be created. Jobs of other months are still moved."""
    facts = {"error": in_a_line(error), "retry_in": in_words(retry_in)}
    write(logging.ERROR, "partitions_not_made", facts)


def missing_partitions(store: Store) -> Callable[[], None]:
    """Return a function that creates the partitions for finished jobs, at its first call and then once an hour.

    A job stays in the job table while its month has no partition.
    """
    due_at = 0.0  # in monotonic seconds

    def make() -> None:
        nonlocal due_at
        if settings.has_archive and time.monotonic() >= due_at:
            due_at = time.monotonic() + PARTITIONS_SECONDS
            try:
                make_partitions(store)
            except DatabaseError as error:
                due_at = time.monotonic() + PARTITIONS_RETRY_SECONDS
                partitions_not_made(error, PARTITIONS_RETRY_SECONDS)

    return make


def keep_partitions(store: Store) -> bool:
    """Create missing partitions, and drop one expired partition. Return whether there may be more to drop."""
    if not settings.has_archive:
        return False
    make_partitions(store, ahead=MONTHS_AHEAD)
    return drop_partition(store)


class ArchivePartitions(Periodic):
    """Creates the partitions of the next months, and drops partitions that are past the archive's retention."""

    name = "archive"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if keep_partitions(self._store) else PARTITIONS_SECONDS)
