"""Claim jobs, and find queued jobs.

Workers send `CLAIM` together with a settle, by `queue.settle.exchange`. The testing tools call `claim`.
"""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING

from django.db import transaction

from ..values.records import ClaimedJob, LeaseRef, QueuePosition
from .fragments import CLAIMED, joined, to_run
from .parameters import claim_values, in_claim_order, positions_as_values
from .session import limit_statements

if TYPE_CHECKING:
    from .store import Store

# Sent by workers. Claims at most `limit` jobs from the queues in the listed order; within a queue by priority, then by
# due time. The claim also ends after the job whose arguments bring the total stored size to 4 MB, because one claim of
# hundreds of jobs must not return a gigabyte. Each claimed job gets a lease number that it never had before. Returns
# only the columns of `ClaimedJob`, because returning whole rows would halve the speed.
# Index: claim, once for each queue. The search in a queue starts after a position, which consists of the negated
# priority, the due time in seconds since the epoch, and the id. The position -101, -infinity, 0 is the front of a
# queue.
# A paused queue is skipped before its jobs are read. This takes one index probe for each queue. The check is a scalar
# subquery, because the planner could turn a join around, and then change the order of the queues, or lock rows of a
# paused queue. The outer LIMIT stops the inner scans, so that only claimed rows are locked. The locked rows cannot
# move, so they are updated by ctid. This saves a lookup: 8 % of the statement's time.
CLAIM = joined(
    """
WITH found AS MATERIALIZED (
    SELECT job.ctid AS place, job.size
    FROM
        unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
            AS queue (name, rank, run_after, id),
        LATERAL (
            SELECT ctid, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
    LIMIT %(limit)s
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS size_before FROM found) AS found
    WHERE size_before < 4000000
)
{to_run}
""",
    to_run=to_run(),
)

# Sent by a worker process that runs only one job, a suspect: two workers died while they ran this job. Another worker
# of the same supervisor has claimed the job, but not begun it. Takes over the job, which ends the other worker's lease,
# and returns it. The claim has already counted this attempt. Index: the primary key.
TAKE_OVER = joined(
    """
UPDATE skipqueue_job AS job
SET lease = job.lease + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
{claimed}""",
    claimed=CLAIMED,
)

# Sent by supervisors, and by workers that serve all queues. Returns the names of the queues with queued jobs: at most
# `limit` names, alphabetically after `after`. Leaves out paused queues, unless `with_paused` is true. Index: claim, one
# probe for each name.
QUEUES_WITH_JOBS = """
WITH RECURSIVE queue AS (
    (
        SELECT queue_name AS name
        FROM skipqueue_job
        WHERE status = 'queued' AND queue_name > %(after)s
        ORDER BY queue_name
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT queue_name
        FROM skipqueue_job
        WHERE status = 'queued' AND queue_name > queue.name
        ORDER BY queue_name
        LIMIT 1
    )
    FROM queue
    WHERE queue.name IS NOT NULL
)
SELECT name
FROM queue
WHERE
    name IS NOT NULL
    AND (
        %(with_paused)s
        OR (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
    )
LIMIT %(limit)s
"""

# Sent by a worker after a claim timed out. Returns for each queue the id and the position of the first job after the
# given position. For a queue without such a job, returns no id, and a position with the current time. Locks no rows and
# reads no arguments, so if this statement is slow, dead index entries are the cause. Index: claim, once for each queue.
FIRST_IN_QUEUES = """
SELECT
    queue.name AS queue_name,
    job.id AS job_id,
    COALESCE(-job.priority, 0) AS rank,
    date_part('epoch', COALESCE(job.run_after, statement_timestamp())) AS run_after,
    COALESCE(job.id, 0) AS id
FROM
    unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
        WITH ORDINALITY AS queue (name, rank, run_after, id, ordinal)
    LEFT JOIN LATERAL (
        SELECT id, priority, run_after
        FROM skipqueue_job
        WHERE
            status = 'queued'
            AND queue_name = queue.name
            AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
        ORDER BY (-priority), run_after, id
        LIMIT 1
    ) AS job ON true
ORDER BY queue.ordinal
"""


def claim(store: "Store", *, queue_names: Sequence[str], limit: int, worker_id: str) -> list[ClaimedJob]:
    """Claim up to `limit` jobs: the queues in the listed order, within each queue the highest priority first."""
    values = claim_values(queue_names, after={}, limit=limit, worker_id=worker_id)
    return in_claim_order(starmap(ClaimedJob, store.rows(CLAIM, values)), queue_names)


def take_over(store: "Store", suspect: LeaseRef, *, worker_id: str) -> ClaimedJob | None:
    """Take over a job that another worker has claimed but not begun. Returns `None` if the lease is no longer valid."""
    id, lease = suspect
    rows = store.rows(TAKE_OVER, {"id": id, "lease": lease, "worker_id": worker_id})
    return ClaimedJob(*rows[0]) if rows else None


def queues_with_jobs(
    store: "Store", *, after: str = "", limit: int | None = None, with_paused: bool = False
) -> list[str]:
    """The names of the queues with queued jobs: at most `limit` names, alphabetically after `after`.

    `with_paused`: also return paused queues, whose jobs no worker claims at the moment.
    """
    values = {"after": after, "limit": limit, "with_paused": with_paused}
    return [name for (name,) in store.rows(QUEUES_WITH_JOBS, values)]


def first_in_queues(
    store: "Store", queue_names: Sequence[str], *, after: Mapping[str, QueuePosition], seconds: float
) -> list[tuple[str, int | None, QueuePosition]]:
    """Find the first job to claim in each queue. The search in a queue starts after the queue's position in `after`.

    Returns (queue name, job id, position of the job). For a queue without a job to claim, the id is None, and the
    position is where a job of priority 0 that is due now would be. The search may take `seconds`, whatever the
    connection's statement timeout.
    """
    with transaction.atomic(using=store.alias):
        limit_statements(store, seconds)
        rows = store.rows(FIRST_IN_QUEUES, positions_as_values(queue_names, after))
    return [(name, job_id, QueuePosition(*position)) for name, job_id, *position in rows]
