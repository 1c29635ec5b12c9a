"""Claim jobs of limits beyond the permits that are free."""

from ..sql.to_run import to_run

# worker, after SETTLE in the same transaction → jobs of these keys, as CLAIM returns them, at most `most` of each key:
# the jobs that would be admitted next. They have no permit of their own (`has_permit` is false): each begins
# in the place of another job of the worker, which has ended.
# Only for a worker that has had, until this transaction at least, as many leases of the key's jobs as it counts
# permits: jobs that still run, and jobs that this transaction has settled, by their `xmin`. What it claims here
# takes their place in the count of ADMIT_BY_KEY. So it needs no lock of the key, and no other process sees less.
# Only jobs of this task and queue, with the same limit and without a rate; none that comes after another job of the
# key; none of a queue that is paused, or whose limit was changed there. At most 1 MB of arguments of a key.
# Index: the primary key, limit_waiting once for each key, and the primary key of queues.
CLAIM_AHEAD = to_run(
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
                bool_or(job.is_other) OVER line AS is_behind,
                sum(job.size) OVER line AS size
            FROM (
                SELECT
                    (CASE
                        WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                        WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                        ELSE 0
                    END) AS rank,
                    id,
                    ctid AS place,
                    pg_column_size(args) + pg_column_size(kwargs) AS size,
                    (
                        task <> wish.task
                        OR queue_name <> wish.queue_name
                        OR capacity IS DISTINCT FROM wish.capacity
                        OR limit_kind <> 'concurrency'
                        OR rate_key IS NOT NULL
                        OR jsonb_array_length(deaths) >= 2
                    ) AS is_other
                FROM skipqueue_job
                WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key = wish.key
                ORDER BY 1, id
                LIMIT wish.most
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS job
            WINDOW line AS (ORDER BY job.rank, job.id)
        ) AS next
    WHERE next.is_behind IS NOT TRUE AND next.size < 1000000
)
{to_run}
""",
    more=",\n    has_permit = false",
)
