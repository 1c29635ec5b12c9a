"""Delete finished jobs, or have a part do something else with them. A prune skips rows that others have locked."""

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

# supervisor, prunejobs → the ids of finished jobs whose retention is over, within each status the oldest first. Locks
# their rows. A retention of NULL keeps jobs of that status for ever. The second SELECT finds jobs with a retention of
# their own, which is shorter; the first SELECT finds these jobs too if both retentions are over. A job is kept for
# `grace` seconds longer. Leaves out the ids in `skipped` and the rows that others have locked. Indexes: prune, once for
# each status, and prune_own.
EXPIRED = joined(
    """
SELECT job.id
FROM
    (
        VALUES
            {retentions}
    ) AS kept (status, retention),
    LATERAL (
        SELECT id
        FROM skipqueue_job
        WHERE
            status IN ({finished})
            AND status = kept.status
            AND finished_at <= statement_timestamp() - kept.retention - make_interval(secs => %(grace)s)
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS job
UNION ALL
SELECT id
FROM (
    SELECT id
    FROM skipqueue_job
    WHERE
        status IN ({finished})
        AND retention IS NOT NULL
        AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
            <= (statement_timestamp() - make_interval(secs => %(grace)s)) AT TIME ZONE 'UTC'
        AND id <> ALL (%(skipped)s::bigint[])
    ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS with_their_own
LIMIT %(limit)s
""",
    retentions=_RETENTIONS,
    finished=FINISHED_LIST,
)

# supervisor, prunejobs, in the same transaction → the number of deleted jobs, by status. Index: the primary key.
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

# doctor, metrics → for how long the retention of the job to be deleted next has been over, in seconds; NULL if there is
# none. Indexes: prune, once for each status, and prune_own.
PRUNE_LAG = joined(
    """
SELECT extract(epoch FROM statement_timestamp() - min(due))::float8
FROM (
    SELECT job.finished_at + kept.retention AS due
    FROM
        (
            VALUES
                {retentions}
        ) AS kept (status, retention),
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ({finished})
                AND status = kept.status
                AND finished_at <= statement_timestamp() - kept.retention
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
    ) AS with_their_own
) AS oldest
""",
    retentions=_RETENTIONS,
    finished=FINISHED_LIST,
)


def prune(
    store: "Store", *, limit: int = BATCH_ROWS, skipped: Iterable[int] = (), grace: float = 0.0
) -> dict[str, int]:
    """Delete finished jobs past their retention, except `skipped`. Returns the number deleted, by status.

    `grace`: the seconds after its retention for which a job is kept.

    A part may do something else with the jobs: see `Part.on_prune`. Runs in one transaction: if one row cannot be
    pruned, no row is. `Pruner` then finds the row that cannot be pruned.
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
    """The seconds for which the retention of the oldest job to delete has been over; 0 if there is none.

    Up to a minute and a half is usual. Costs a few index probes.
    """
    ((lag,),) = store.rows(PRUNE_LAG, _retentions())
    return float(lag or 0.0)


def _retentions() -> dict[str, timedelta | None]:
    return {status: settings.retention_of(status) for status in FINISHED_STATUSES}
