"""Delete finished jobs after their retention, or let a part move them. Rows locked by others are skipped."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import transaction

from ..conf import settings
from ..events.events import JobsPruned
from ..values.part import installed_parts
from ..values.statuses import FINISHED_STATUSES
from .fragments import FINISHED_LIST, PIECES, joined
from .parameters import BATCH_ROWS, as_array

if TYPE_CHECKING:
    from .store import Store

_RETENTIONS = ", ".join(f"('{status}', %({status})s::interval)" for status in FINISHED_STATUSES)

# Sent by supervisors and by the command prunejobs. Locks finished jobs whose retention is over, and returns their ids,
# within each status the oldest first. If the retention of a status is NULL, its jobs are kept forever. The second
# SELECT finds jobs with their own, shorter retention, which the first SELECT may find too. Each job is kept for `grace`
# seconds longer. Leaves out the ids in `skipped`, and rows that other transactions have locked. Indexes: prune, once
# for each status, and prune_own.
EXPIRED = joined(
    """
SELECT expired.id
FROM
    (
        VALUES
            {retentions}
    ) AS period (status, retention),
    LATERAL (
        SELECT id
        FROM skipqueue_job AS job
        WHERE
            status IN ({finished})
            AND status = period.status
            AND finished_at <= statement_timestamp() - period.retention - make_interval(secs => %(grace)s)
            AND id <> ALL (%(skipped)s::bigint[]){unless_needed}
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS expired
UNION ALL
SELECT id
FROM (
    SELECT id
    FROM skipqueue_job AS job
    WHERE
        status IN ({finished})
        AND retention IS NOT NULL
        AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
            <= (statement_timestamp() - make_interval(secs => %(grace)s)) AT TIME ZONE 'UTC'
        AND id <> ALL (%(skipped)s::bigint[]){unless_needed}
    ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS with_own_retention
LIMIT %(limit)s
""",
    retentions=_RETENTIONS,
    finished=FINISHED_LIST,
    unless_needed=PIECES["unless_needed"],
)

# Sent after EXPIRED, in its transaction. Deletes these jobs, and returns how many it deleted, by status. Index: the
# primary key.
PRUNE = joined(
    """
WITH pruned AS (
    DELETE FROM skipqueue_job
    WHERE id = ANY (ARRAY (SELECT unnest(%(ids)s::bigint[])))
    RETURNING id, status{pruned}
){after_prune}
SELECT status, count(*) FROM pruned GROUP BY status
""",
    pruned=PIECES["pruned"],
    after_prune=PIECES["after_prune"],
)

# Sent by the doctor and by metrics. Returns for how many seconds the retention of the next job to delete has been over;
# NULL if there is no job to delete. Indexes: prune, once for each status, and prune_own.
PRUNE_LAG = joined(
    """
SELECT extract(epoch FROM statement_timestamp() - min(due))::float8
FROM (
    SELECT job.finished_at + period.retention AS due
    FROM
        (
            VALUES
                {retentions}
        ) AS period (status, retention),
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ({finished})
                AND status = period.status
                AND finished_at <= statement_timestamp() - period.retention
            ORDER BY finished_at
            LIMIT 1
        ) AS job
    UNION ALL
    SELECT due AT TIME ZONE 'UTC'
    FROM (
        SELECT (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8) AS due
        FROM skipqueue_job
        WHERE
            status IN ({finished})
            AND retention IS NOT NULL
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
        LIMIT 1
    ) AS with_own_retention
) AS oldest
""",
    retentions=_RETENTIONS,
    finished=FINISHED_LIST,
)


def prune(
    store: "Store", *, limit: int = BATCH_ROWS, skipped: Iterable[int] = (), grace: float = 0.0
) -> dict[str, int]:
    """Delete finished jobs whose retention is over. Returns the number of deleted jobs, by status.

    limit: delete at most this number of jobs.
    skipped: the ids of jobs that must not be deleted.
    grace: the seconds for which a job is kept after its retention.

    A part may prune the jobs in its own way: see `Part.on_prune`. Everything runs in one transaction, so if one row
    cannot be pruned, no row is pruned. `Pruner` then finds this row.
    """
    with transaction.atomic(using=store.alias):
        ids = store.expired(limit=limit, skipped=skipped, grace=grace)
        counts = _delete(store, ids) if ids else {}
    if counts:
        store.send(JobsPruned(store.alias, counts))
    return counts


def _delete(store: "Store", ids: list[int]) -> dict[str, int]:
    for part in installed_parts():
        if part.on_prune and (counts := part.on_prune(store, ids)) is not None:
            return counts
    return dict(store.rows(PRUNE, {"ids": as_array(ids)}))


def expired(store: "Store", *, limit: int = BATCH_ROWS, skipped: Iterable[int] = (), grace: float = 0.0) -> list[int]:
    """The ids of the jobs to delete next. Locks their rows until the caller's transaction ends."""
    values = {**_retentions(), "grace": grace, "limit": limit, "skipped": as_array(skipped)}
    return [id for (id,) in store.rows(EXPIRED, values)]


def prune_lag(store: "Store") -> float:
    """The seconds since the retention of the next job to delete was over; 0 if there is no job to delete.

    Up to a minute and a half is usual. Costs a few index probes.
    """
    ((lag,),) = store.rows(PRUNE_LAG, _retentions())
    return float(lag or 0.0)


def _retentions() -> dict[str, timedelta | None]:
    return {status: settings.retention_of(status) for status in FINISHED_STATUSES}
