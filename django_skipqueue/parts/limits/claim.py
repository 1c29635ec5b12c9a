"""Claim jobs that have just got a permit, and claim jobs ahead: before a permit of their key is free."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...queue.fragments import joined, to_run
from ...queue.parameters import leases_as_values
from ...values.records import LeaseRef
from ..keyed.sql import indented
from .columns import RANK
from .sql import DUE_WITH_PERMIT, LATER_KEY

# Sent by the worker, after SETTLE in the same transaction. Claims the next waiting jobs of these keys ahead, at most
# `most` per key, and returns them in the columns of CLAIM. A job that is claimed ahead (`gate` = 'ahead') has no permit
# of its own: later it takes over the permit of a job of this worker that has ended. The statement claims jobs of a key
# only if the worker has at least as many leases of the key's jobs as the worker counts permits. A lease counts if its
# job still runs, or if this transaction has settled the job, which `xmin` shows. ADMIT_BY_KEY then counts each claimed
# job as a holder of a permit, in place of a settled job. Because no process ever counts fewer held permits than before,
# the statement need not lock the key. The statement claims only jobs of the wanted task and queue with the same limit
# and without a rate limit. It stops at the key's first job that differs. It skips queues that are paused or whose limit
# somebody has changed, and reads at most 1 MB of arguments per key. Index: the primary key, limit_waiting once for each
# key, and the primary key of queues.
CLAIM_AHEAD = joined(
    """
WITH held AS MATERIALIZED (
    SELECT job.limit_key AS key, count(*) AS number, min(job.capacity) AS capacity
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS known (id, lease)
        JOIN skipqueue_job AS job ON job.id = known.id
    WHERE
        job.limit_kind = 'concurrency'
        AND CASE
            WHEN job.lease = known.lease THEN job.status = 'running'
            ELSE job.lease = known.lease + 1 AND job.xmin = pg_current_xact_id_if_assigned()::xid
        END
    GROUP BY job.limit_key
    HAVING min(job.capacity) = max(job.capacity)
),
wish AS MATERIALIZED (
    SELECT wish.key, wish.task, wish.queue_name, wish.most, held.capacity
    FROM
        unnest(
            %(keys)s::text[], %(tasks)s::text[], %(queue_names)s::text[], %(permits)s::integer[], %(most)s::integer[]
        ) AS wish (key, task, queue_name, permits, most)
        JOIN held ON held.key = wish.key AND held.number >= wish.permits
    WHERE
        (
            SELECT queue.name
            FROM skipqueue_queue AS queue
            WHERE
                queue.name = wish.queue_name
                AND (
                    queue.concurrency IS NOT NULL
                    OR (
                        queue.paused_at IS NOT NULL
                        AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
                    )
                )
        ) IS NULL
),
chosen AS MATERIALIZED (
    SELECT next.place
    FROM
        wish,
        LATERAL (
            SELECT
                job.place,
                bool_or(job.is_other) OVER line AS is_behind_other,
                sum(job.size) OVER line AS size
            FROM (
                SELECT
                    {rank} AS rank,
                    id,
                    ctid AS place,
                    pg_column_size(args) + pg_column_size(kwargs) AS size,
                    (
                        task <> wish.task
                        OR queue_name <> wish.queue_name
                        OR capacity IS DISTINCT FROM wish.capacity
                        OR limit_kind <> 'concurrency'
                        OR {later} IS NOT NULL
                        OR jsonb_array_length(deaths) >= 2
                    ) AS is_other
                FROM skipqueue_job
                WHERE gate = 'limit' AND limit_key = wish.key
                ORDER BY 1, id
                LIMIT wish.most
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS job
            WINDOW line AS (ORDER BY job.rank, job.id)
        ) AS next
    WHERE next.is_behind_other IS NOT TRUE AND next.size < 1000000
)
{to_run}
""",
    rank=indented(RANK, 20),
    later=LATER_KEY,
    to_run=to_run(further_columns=",\n    gate = 'ahead'"),
)


# Sent by the worker, after CHOOSE_BY_KEY in the same transaction. Claims at most `limit` jobs in the usual order, among
# the queued jobs and the jobs that CHOOSE_BY_KEY has chosen, and returns them in the columns of CLAIM. A chosen job
# that is claimed never becomes queued, which saves one version of its row and three index entries; the other chosen
# jobs become queued. `ahead` and `share` first count, without locks, how many of the claimed jobs will be chosen jobs.
# So the statement locks only the queued jobs that it claims, and other workers can claim the rest at the same moment.
# `number`: the position of the job's queue in the worker's list; NULL if the worker must not claim from it. This
# transaction has locked the chosen jobs, so their ctids are stable. Index: claim, twice for each queue, as in CLAIM.
# The chosen jobs are read by ctid.
CLAIM_OR_ADMIT = joined(
    """
WITH queue AS MATERIALIZED (
    SELECT name, rank, run_after, id, number
    FROM
        unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
            WITH ORDINALITY AS queue (name, rank, run_after, id, number)
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
),
admitted AS MATERIALIZED (
    SELECT
        queue.number,
        -job.priority AS rank,
        {due} AS run_after,
        job.id,
        job.ctid AS place,
        pg_column_size(job.args) + pg_column_size(job.kwargs) AS size
    FROM skipqueue_job AS job LEFT JOIN queue ON queue.name = job.queue_name
    WHERE job.ctid = ANY ((SELECT NULLIF(current_setting('skipqueue.chosen_jobs', true), '')::tid[])::tid[])
),
ahead AS MATERIALIZED (
    SELECT queue.number, job.rank, job.run_after, job.id
    FROM
        queue,
        LATERAL (
            SELECT -priority AS rank, run_after, id
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
        ) AS job
    LIMIT (SELECT CASE WHEN count(number) > 0 THEN %(limit)s ELSE 0 END FROM admitted)
),
share AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE is_admitted) AS number
    FROM (
        SELECT is_admitted
        FROM (
            SELECT number, rank, run_after, id, false AS is_admitted FROM ahead
            UNION ALL
            SELECT number, rank, run_after, id, true FROM admitted WHERE number IS NOT NULL
        ) AS job
        ORDER BY number, rank, run_after, id
        LIMIT %(limit)s
    ) AS first
),
found AS MATERIALIZED (
    SELECT queue.number, job.rank, job.run_after, job.id, job.place, job.size
    FROM
        queue,
        LATERAL (
            SELECT
                -priority AS rank, run_after, id,
                ctid AS place, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    LIMIT %(limit)s - (SELECT number FROM share)
),
first_admitted AS (
    SELECT number, rank, run_after, id, place, size
    FROM admitted
    WHERE number IS NOT NULL
    ORDER BY number, rank, run_after, id
    LIMIT (SELECT number FROM share)
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (
        SELECT place, sum(size) OVER line - size AS size_before
        FROM (SELECT * FROM found UNION ALL SELECT * FROM first_admitted) AS job
        WINDOW line AS (ORDER BY number, rank, run_after, id ROWS UNBOUNDED PRECEDING)
    ) AS job
    WHERE size_before < 4000000
),
unclaimed AS MATERIALIZED (SELECT place FROM admitted EXCEPT SELECT place FROM chosen),
queued AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued',
        gate = NULL,
        run_after = {due}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM unclaimed))
)
{to_run}
""",
    due=indented(DUE_WITH_PERMIT, 8),
    to_run=to_run(
        further_columns=""",
    gate = NULL,
    run_after = CASE
        WHEN job.gate = 'limit' AND job.limit_kind = 'fair'
        THEN GREATEST(job.run_after, statement_timestamp())
        ELSE job.run_after
    END"""
    ),
)


class AheadWish(NamedTuple):
    """A worker's request to claim jobs of one key ahead, that is before a permit of the key is free."""

    key: str
    task: str
    queue_name: str
    permits: int
    """The number of permits of the key that the worker's jobs hold."""
    most: int
    """The maximum number of jobs to claim."""
    leases: list[LeaseRef]
    """The leases of the key's jobs that the worker has claimed and not yet settled."""


def ahead_as_values(wishes: Sequence[AheadWish], *, worker_id: str) -> dict[str, Any]:
    """Return the parameters of CLAIM_AHEAD."""
    return {
        **leases_as_values(ref for wish in wishes for ref in wish.leases),
        "keys": [wish.key for wish in wishes],
        "tasks": [wish.task for wish in wishes],
        "queue_names": [wish.queue_name for wish in wishes],
        "permits": [wish.permits for wish in wishes],
        "most": [wish.most for wish in wishes],
        "worker_id": worker_id,
    }
