"""Pass permits and tokens on: from a job that no worker has claimed to one that should start before it.

A queued job keeps the permit of its limit, or the token of its rate, while it waits for a worker. A blocked job of the
key may be better: its priority is higher, or only its queue has a worker. Then the queued job is put back, and
the blocked one admitted in its place.

Invariant: a statement here admits at most the number of jobs of a key that it puts back, under the lock of the key. So
it never raises the number of permits that are held, nor takes a token. Swaps end: the job that is admitted has a higher
priority than the job that is put back; or its queue is served, and that of the other job is not; or a worker of another
queue has a free slot for it, for which no job is put back more than once a minute.

A queue is served if it is not paused, and a live worker or a relay takes jobs from it. A job of a sequence that has
begun is never put back, and no job of a sequence is admitted before the next one in order.
"""

from .keyed import of_permits, of_tokens

_CONTESTED = """
WITH RECURSIVE {served},
waiting AS (
    (
        SELECT {key} AS key
        FROM skipqueue_job
        WHERE {waiting} AND {key} > %(after)s::text
        ORDER BY {key}
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT {key}
        FROM skipqueue_job
        WHERE {waiting} AND {key} > waiting.key
        ORDER BY {key}
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.key IS NOT NULL
),
found AS MATERIALIZED (SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT found.key, unclaimed.is_inverted, unclaimed.unserved, unclaimed.held_up
FROM
    served
    CROSS JOIN found
    LEFT JOIN LATERAL (
        SELECT {rank}
        FROM skipqueue_job
        WHERE {waiting} AND {key} = found.key AND ({in_order} OR {is_served})
        ORDER BY {order}
        LIMIT 1
    ) AS head ON true
    CROSS JOIN LATERAL (
        SELECT
            bool_or(head.rank < holder.rank OR (holder.is_in_order AND head.id < holder.id)) AS is_inverted,
            (array_agg(holder.id ORDER BY {worst_first}) FILTER (
                WHERE NOT (holder.is_in_order OR holder.is_served)
            ))[:100] AS unserved,
            (array_agg(holder.id ORDER BY {worst_first}) FILTER (
                WHERE holder.is_served AND NOT holder.is_in_order
            ))[:100] AS held_up
        FROM (
            SELECT {rank}, {in_order} AS is_in_order, {is_served} AS is_served
            FROM skipqueue_job
            WHERE {key} = found.key AND {unclaimed} AND head.id IS NOT NULL
        ) AS holder
    ) AS unclaimed
ORDER BY found.key
"""

_SWAP = """
WITH {served},
holder AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY {worst_first}) AS place
    FROM
        unnest((SELECT NULLIF(current_setting('{locked}', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT {rank}, {in_order} AS is_in_order, queue_name
            FROM skipqueue_job
            WHERE
                {key} = key.name
                AND {unclaimed}
                AND (%(ids)s::bigint[] IS NULL OR array_position(%(ids)s::bigint[], id) > 0)
            ORDER BY {worst_first}
            LIMIT 100
        ) AS job
),
waiting AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY {order}) AS place
    FROM
        (SELECT name, count(*) AS number, array_agg(DISTINCT queue_name) AS queues FROM holder GROUP BY name) AS key,
        served,
        LATERAL (
            SELECT {rank}
            FROM skipqueue_job
            WHERE
                {waiting}
                AND {key} = key.name
                AND ({in_order} OR {is_served})
                AND (%(ids)s::bigint[] IS NULL OR queue_name <> ALL (key.queues))
            ORDER BY {order}
            LIMIT key.number
        ) AS job
),
pair AS MATERIALIZED (
    SELECT name, place, holder.id AS holder_id, waiting.id AS waiting_id
    FROM holder JOIN waiting USING (name, place)
    WHERE
        %(ids)s::bigint[] IS NOT NULL
        OR waiting.rank < holder.rank
        OR (holder.is_in_order AND waiting.id < holder.id)
),
worse AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (SELECT holder_id FROM pair))
        AND (status || '' = 'queued' OR (status || '' = 'blocked' AND has_permit))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
put_back AS (
    UPDATE skipqueue_job AS job
    SET {put_back}
    WHERE job.id = ANY (ARRAY (SELECT id FROM worse))
    RETURNING job.id, job.{key} AS name
),
chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (
            SELECT pair.waiting_id
            FROM pair JOIN (SELECT name, count(*) AS number FROM put_back GROUP BY name) AS freed USING (name)
            WHERE pair.place <= freed.number
        ))
        AND {waiting}
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET {admit}
    WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
    RETURNING job.queue_name, job.status, job.rate_key
)
SELECT queue_name, {admitted}, (SELECT array_agg(id) FROM put_back) FROM admitted GROUP BY queue_name
"""

# supervisor → at most `limit` keys with waiting jobs, alphabetically after `after`. Of the next job whose queue is
# served, and of the jobs with a permit that no worker has claimed: whether the former has a higher priority than one of
# the latter, or comes before it in their sequence; those of the latter whose queues are not served, and the others,
# without sequences: of each the worst hundred. All NULL if there is no such job. Locks nothing.
# Index: limit_waiting and limit_held, once for each key.
CONTESTED_PERMITS = of_permits(_CONTESTED)

# supervisor → as CONTESTED_PERMITS, of rates. Index: rate_waiting and rate_queued, once for each key.
CONTESTED_TOKENS = of_tokens(_CONTESTED)

# supervisor, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the rates that jobs with a permit
# wait for now; and in each row the ids of all jobs that were put back. The worst job that has a permit is compared with
# the best one that waits, the next with the next: the waiting one gets the permit if its priority is higher, or if it
# comes before the other in their sequence. With `ids`: these jobs are put back for waiting ones of other queues,
# whatever their priority. At most 100 jobs of a key.
# A locked row may have a version that this statement does not see, and that no `ctid` finds here: a job counts as put
# back once its row is written.
# Index: limit_held and limit_waiting, once for each key, and the primary key.
PASS_PERMITS_ON = of_permits(_SWAP)

# supervisor, after LOCK_RATES → as PASS_PERMITS_ON, but for the keys of rates. The tokens stay taken.
# Index: rate_queued and rate_waiting, once for each key, and the primary key.
PASS_TOKENS_ON = of_tokens(_SWAP)
