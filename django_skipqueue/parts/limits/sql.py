"""SQL fragments that several statements of limits contain, and the statement that locks keys.

`parts.limits.admit` explains which of a key's jobs hold a permit and which wait for one.
"""

from ...queue.fragments import entering, joined, key_after
from ..keyed.sql import indented, locking

# The key for which the job waits at the next gate, once it has a permit; NULL if no further gate holds it.
LATER_KEY = key_after("limit")

_ENTERING = entering(column="job.{}", past="limit")

# The name of the gate at which the job waits next, once it has a permit; NULL if no further gate holds it.
LATER_GATE = _ENTERING["gate"]

# The condition of a job that waits for a permit of its key.
WAITS_FOR_PERMIT = "gate = 'limit'"

# The condition of a job whose row this transaction has written. `xmin` is the number of the row's last writer.
WAS_WRITTEN_BY_THIS_TRANSACTION = "xmin = pg_current_xact_id_if_assigned()::xid"

# How many permits the key has; NULL means unlimited. `head`: the job whose columns count, such as the key's next job.
LIMITED = """LATERAL (
    SELECT CASE WHEN concurrency IS NULL THEN {head}.capacity ELSE NULLIF(concurrency, 0) END AS permits
    FROM (
        SELECT CASE
            WHEN starts_with({key}, 'queue:')
            THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr({key}, 7))
        END AS concurrency
    ) AS changed
) AS limited"""

# The new `run_after` of a job that gets a permit.
DUE_WITH_PERMIT = """CASE
    WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
    ELSE job.run_after
END"""

_PERMIT_GIVEN = """status = {status},
    gate = {gate},
    run_after = {due}"""

# Part of the statements that give a job its permit: the columns that they set. The job may then wait for its rate.
PERMIT_GIVEN = joined(_PERMIT_GIVEN, **_ENTERING, due=indented(DUE_WITH_PERMIT, 4))

# Sent by the worker in the transaction of a settle, before ADMIT_BY_KEY; by the supervisor; by enqueue, after the
# commit. Tries to lock the keys `keys`, and the keys of the jobs `ids`, which have just ended or been claimed. Returns
# the keys that another transaction has locked. For ADMIT_BY_KEY, the statement stores three lists in PostgreSQL
# settings: the keys that it has locked; for each key, how many of its jobs have ended; and whether the next job of its
# sequence may start, because this transaction, and not a faster worker, has ended the job before it. A key's lock is
# one of 1,024 advisory locks, held until the transaction ends, so two keys may share a lock. One lock per key could
# fill PostgreSQL's lock table, and a table of keys would need rows that are inserted and deleted. At a higher isolation
# level than READ COMMITTED no key is locked, because ADMIT_BY_KEY would not see what the lock's previous holder has
# done. The array is a subquery to hide its length from the planner, which would otherwise choose to read a small table
# whole. Index: the primary key.
LOCK_KEYS = locking(
    lock_namespace="1397442896",  # "SKIP" in ASCII
    locked_keys_setting="skipqueue.locked_keys",
    select_keys=joined(
        """SELECT key, sum(ended_count)::integer AS ended_count, bool_or(next_may_start) AS next_may_start
    FROM (
        SELECT
            limit_key AS key,
            CASE WHEN status = 'running' THEN 0 ELSE 1 END AS ended_count,
            (
                limit_kind IN ('sequence', 'halting')
                AND (status IN ('completed', 'discarded') OR (status = 'failed' AND limit_kind = 'sequence'))
                AND {was_written_by_this_transaction}
            ) IS TRUE AS next_may_start
        FROM skipqueue_job
        WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND limit_key IS NOT NULL
        UNION ALL
        SELECT unnest((SELECT %(keys)s::text[])), 0, false
    ) AS touched
    GROUP BY key""",
        was_written_by_this_transaction=WAS_WRITTEN_BY_THIS_TRANSACTION,
    ),
    further_settings=""" || set_config(
        'skipqueue.ended_jobs', COALESCE(array_agg(wanted.ended_count) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) || set_config(
        'skipqueue.free_keys', COALESCE(array_agg(wanted.next_may_start) FILTER (WHERE lock.is_ours), '{}')::text, true
    )""",
)
