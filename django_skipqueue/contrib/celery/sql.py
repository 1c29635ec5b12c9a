"""The statements of a relay, and of `runrelay --reclaim`, that no worker needs.

What comes from a broker is written by statements of the core with a further condition, OF_CARRIER.
"""

from ...queue.fragments import joined
from ...queue.recover import recovering
from ...queue.store import guards

# The end of a WHERE: only jobs that the carrier or one of its relays holds. Who can write to the broker can name any
# job with any lease: both are small numbers.
# A carrier holds what its relays have handed over. A relay holds what it has claimed, and an outcome may be quicker
# than the hand-over. The subquery runs only if a row does not name the carrier; the table has a row for each relay.
OF_CARRIER = (
    "\n    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN "
    "(SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))"
)

# relay, settle → as the statements of the core in whose place the store of a relay sends these: a lease is no secret in
# the broker. Index: the primary key.
GUARDS = guards(OF_CARRIER)

SETTLE_CARRIED, SETTLE_CARRIED_SNOOZES, APPEND_CANCELLED_ERRORS_CARRIED, RELEASE_CARRIED, NOTE_CARRIED_ATTEMPTS = (
    GUARDS.values()
)

# relay → nothing. These jobs of a carrier begin again, after another process that had them is gone: from now on they
# have begun later than they were claimed, which RECOVER_RETURNED looks for. Index: the primary key, in the order of the
# arrays.
NOTE_BEGUN = joined(
    """
UPDATE skipqueue_job AS job
SET started_at = statement_timestamp()
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease{only}
RETURNING job.id
""",
    only=OF_CARRIER,
)

# relay → as RECOVER: the jobs with these leases that have begun, as NOTE_BEGUN says. The carrier gave them back because
# its workers are gone. Each time counts as a death. Index: recover.
RECOVER_RETURNED = recovering(
    chosen=joined(
        """
        AND (job.id, job.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]))
        AND job.started_at > job.locked_at{only}""",
        only=OF_CARRIER,
    ),
    died="COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by)",
)

# relay, `runrelay --show-topology` → nothing. Writes what the table has of a carrier, and of a relay of it unless that
# is NULL; deletes what it has of workers without a row. Index: the primary keys.
HEARTBEAT = """
WITH gone AS (
    DELETE FROM skipqueue_celery_worker AS beside
    WHERE
        beside.worker_id <> ALL (ARRAY[%(carrier_id)s, %(relay_id)s]::text[])
        AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = beside.worker_id)
)
INSERT INTO skipqueue_celery_worker AS written (worker_id, relay_of, reached_at, refused)
SELECT seen.worker_id, seen.relay_of, seen.reached_at, seen.refused
FROM (
    VALUES
        (%(carrier_id)s::text, '', CASE WHEN %(is_reached)s THEN statement_timestamp() END, %(refused)s::bigint),
        (%(relay_id)s::text, %(carrier)s::text, NULL, 0)
) AS seen (worker_id, relay_of, reached_at, refused)
WHERE seen.worker_id IS NOT NULL
ON CONFLICT (worker_id) DO UPDATE SET
    reached_at = COALESCE(excluded.reached_at, written.reached_at),
    refused = written.refused + excluded.refused
WHERE written.relay_of = ''
"""

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
    SELECT
        worker.id,
        worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s) AS is_alive
    FROM skipqueue_celery_worker AS beside JOIN skipqueue_worker AS worker ON worker.id = beside.worker_id
    WHERE beside.relay_of = %(carrier)s
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
