"""Every statement about carriers for operators, as a literal. Each reads a bounded number of rows, by an index."""

# pages, commands, metrics → for each carrier: name, queues, window; how many jobs are with it, since when the oldest,
# and for how many seconds; how many relays are alive; the seconds since a relay's last heartbeat, and since one last
# reached the broker; how many jobs it has refused. Of all running jobs, `limit` are looked at, those first that were
# claimed first: once, however many carriers there are, and none without a carrier. Index: recover.
CARRIERS_NOW = """
WITH held AS MATERIALIZED (
    SELECT locked_by, count(*) AS number, min(locked_at) AS oldest
    FROM (
        SELECT locked_by, locked_at
        FROM skipqueue_job
        WHERE status = 'running' AND EXISTS (SELECT FROM skipqueue_worker WHERE is_carrier)
        ORDER BY locked_at
        LIMIT %(limit)s
    ) AS job
    GROUP BY locked_by
)
SELECT
    carrier.name,
    carrier.queues::text,
    carrier.concurrency,
    COALESCE(held.number, 0),
    held.oldest,
    date_part('epoch', statement_timestamp() - held.oldest),
    (
        SELECT count(*)
        FROM skipqueue_worker AS relay
        WHERE
            relay.relay_of = carrier.name
            AND relay.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s)
    ),
    date_part('epoch', statement_timestamp() - carrier.heartbeat_at),
    date_part('epoch', statement_timestamp() - carrier.reached_at),
    carrier.refused
FROM skipqueue_worker AS carrier LEFT JOIN held ON held.locked_by = carrier.id
WHERE carrier.is_carrier
ORDER BY carrier.name
LIMIT 200
"""

# doctor → the jobs that a carrier has held for longer than `seconds`, the longest first, with their own time limits. Of
# all jobs that were claimed that long ago, 5,000 are looked at. Index: recover.
HELD_FOR_LONG = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age, timeout
FROM (
    SELECT id, task, locked_by, locked_at, timeout
    FROM skipqueue_job
    WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE locked_by = %(carrier_id)s
ORDER BY locked_at
LIMIT 1000
"""
