"""Pass permits and tokens on: from a job that no worker has claimed to one that should start before it.

A queued job keeps the permit of its limit, or the token of its rate, while it waits for a worker. A blocked job of the
key may be better: its priority is higher, or only its queue has a worker. Then the queued job is put back, and
the blocked one admitted in its place.

Invariant: a statement here admits at most the number of jobs of a key that it puts back, under the lock of the key. So
it never raises the number of permits that are held, nor takes a token. Swaps end: the job that is admitted has a higher
priority than the job that is put back; or its queue is served, and that of the other job is not; or a worker has a free
slot for it, and claims it soon.

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
SELECT
    found.key,
    bool_or(head.rank < holder.rank OR (holder.is_in_order AND head.id < holder.id)) AS is_inverted,
    array_agg(holder.id) FILTER (WHERE NOT (holder.is_in_order OR holder.is_served)) AS unserved,
    array_agg(holder.id) FILTER (WHERE holder.is_served AND NOT holder.is_in_order) AS unclaimed
FROM
    found,
    served,
    LATERAL (
        SELECT {rank}
        FROM skipqueue_job
        WHERE {waiting} AND {key} = found.key AND ({in_order} OR {is_served})
        ORDER BY {order}
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT {rank}, {in_order} AS is_in_order, {is_served} AS is_served
        FROM skipqueue_job
        WHERE {key} = found.key AND {unclaimed}
        LIMIT 100
    ) AS holder
GROUP BY found.key
"""

_SWAP = """
WITH {served},
holder AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY {worst_first}) AS place
    FROM
        unnest((SELECT NULLIF(current_setting('{locked}', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT {rank}, {in_order} AS is_in_order
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
        (SELECT name, count(*) AS number FROM holder GROUP BY name) AS key,
        served,
        LATERAL (
            SELECT {rank}
            FROM skipqueue_job
            WHERE {waiting} AND {key} = key.name AND ({in_order} OR {is_served})
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
put_back AS MATERIALIZED (
    SELECT {key} AS name, ctid AS place
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (SELECT holder_id FROM pair))
        AND (status || '' = 'queued' OR (status || '' = 'blocked' AND has_permit))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
chosen AS MATERIALIZED (
    SELECT ctid AS place
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
blocked AS (
    UPDATE skipqueue_job AS job
    SET {put_back}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM put_back))
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET {admit}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.status, job.rate_key
)
SELECT queue_name, {admitted} FROM admitted GROUP BY queue_name
"""

# supervisor → at most `limit` keys, alphabetically after `after`, that have a waiting job in a queue that is served,
# and jobs with a permit that no worker has claimed: whether the waiting job has a higher priority than one of these,
# or comes before it in their sequence; those of them whose queues are not served, and the others, without sequences. At
# most 100 unclaimed jobs of a key are looked at. Locks nothing.
# Index: limit_waiting and limit_held, once for each key.
CONTESTED_PERMITS = of_permits(_CONTESTED)

# supervisor → as CONTESTED_PERMITS, of rates. Index: rate_waiting and rate_queued, once for each key.
CONTESTED_TOKENS = of_tokens(_CONTESTED)

# supervisor, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the
# rates that jobs with a permit wait for now. The worst job that has a permit is compared with the best one that waits,
# the next with the next: the waiting one gets the permit if its priority is higher, or if it comes before the other in
# their sequence. With `ids`: these jobs are put back for the waiting ones, whatever their priority. At most 100 jobs of
# a key.
# Index: limit_held and limit_waiting, once for each key, and the primary key.
PASS_PERMITS_ON = of_permits(_SWAP)

# supervisor; after LOCK_RATES → as PASS_PERMITS_ON: the number of admitted jobs, by queue. The tokens stay taken.
# Index: rate_queued and rate_waiting, once for each key, and the primary key.
PASS_TOKENS_ON = of_tokens(_SWAP)
