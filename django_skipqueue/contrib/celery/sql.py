"""The statements of a relay, and of `runrelay --reclaim`, that no worker needs."""

# relay → id and lease of the jobs that the carrier has confirmed, and holds from now on. Does not end the lease: an
# outcome may have been quicker, and then the job matches no row here. `locked_by` is in no index, so that the new
# version stays on its page if there is room. Index: the primary key, in the order of the arrays.
HAND_OVER = """
UPDATE skipqueue_job AS job
SET locked_by = %(carrier_id)s
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, held.lease
"""

# relay → how many jobs the carrier holds, how many its relays hold for it, and how many relays are alive. Index:
# recover, which has an entry for each running job.
CARRIED_COUNT = """
WITH relay AS MATERIALIZED (
    SELECT id, heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s) AS is_alive
    FROM skipqueue_worker
    WHERE relay_of = %(carrier)s
)
SELECT
    count(*) FILTER (WHERE locked_by = %(carrier_id)s),
    count(*) FILTER (WHERE locked_by <> %(carrier_id)s),
    (SELECT count(*) FROM relay WHERE is_alive)
FROM skipqueue_job
WHERE status = 'running' AND (locked_by = %(carrier_id)s OR locked_by IN (SELECT id FROM relay))
"""

# relay whose window is full, doctor → the tasks and time limits of the jobs that the carrier holds, with the number of
# the jobs, and the seconds since the youngest of them was claimed. Index: recover.
CARRIED_BY_TASK = """
SELECT task, timeout, count(*), date_part('epoch', statement_timestamp() - max(locked_at))
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s
GROUP BY task, timeout
"""

# reclaim → how many of the jobs that the carrier holds were claimed by this time. Index: recover.
CARRIED_BEFORE = """
SELECT count(*)
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s AND locked_at <= %(claimed_until)s
"""

# reclaim → the time. Index: none is needed.
CLOCK = "SELECT statement_timestamp()"

# relay → id and lease of the jobs that the carrier held until they were cancelled or discarded by hand, since the last
# look. That raised the lease by one. Index: prune.
CANCELLED = """
SELECT id, lease - 1
FROM skipqueue_job
WHERE
    status = 'discarded'
    AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by = %(carrier_id)s
ORDER BY finished_at DESC
LIMIT %(limit)s
"""

# relay → when the row of the carrier was written first: it tells this database from others that have the same alias.
# Index: the primary key.
CARRIER_SINCE = "SELECT started_at FROM skipqueue_worker WHERE id = %(carrier_id)s"
