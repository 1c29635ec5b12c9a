"""The pieces that the statements of limits share, and the lock of their keys.

`parts.limits.admit` says which jobs of a key hold a permit or wait for one.
"""

from ...queue.fragments import entering, joined, key_after
from ..keyed.sql import indented, locking

# The key of the next gate, at which a job with a permit may wait; NULL: it waits at no gate.
LATER_KEY = key_after("limit")

_ENTERING = entering(column="job.{}", past="limit")

# The next gate at which a job with a permit waits; NULL: it waits at no gate.
LATER_GATE = _ENTERING["gate"]

# The condition of a job that waits for a permit of its key.
WAITS_FOR_PERMIT = "gate = 'limit'"

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

# When a job that gets a permit is due.
DUE_WITH_PERMIT = """CASE
    WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
    ELSE job.run_after
END"""

_PERMIT_GIVEN = """status = {status},
    gate = {gate},
    run_after = {due}"""

# statements that give permits: the columns that they set in a job. The job may wait for its rate now.
PERMIT_GIVEN = joined(_PERMIT_GIVEN, **_ENTERING, due=indented(DUE_WITH_PERMIT, 4))

# worker in the transaction of a settle, before ADMIT_BY_KEY; supervisor; enqueue, after the commit → the keys that
# another transaction has locked, and three lists for ADMIT_BY_KEY: the keys that are locked now; for each, how many of
# its jobs have ended; and whether the permit of a sequence is free, because this transaction itself has ended the job
# that held it. The `xmin` of the row shows that this transaction has written it, and not a quicker worker.
# The keys are those of the jobs `ids`, which have just ended or been claimed, and `keys`. A lock is one of 1,024
# advisory locks, until the end of the transaction. Rows of a table of keys would have to be inserted and deleted, and a
# lock for each key could fill PostgreSQL's table of locks. Two keys that share a lock only wait for each other. At a
# higher isolation level no key is locked: ADMIT_BY_KEY would not see what the previous holder of the lock has done. The
# array is a subquery, so that the planner does not know its length: otherwise it would read a small table whole.
# Index: the primary key.
LOCK_KEYS = locking(
    locks="1397442896",
    setting="skipqueue.locked_keys",
    wanted="""SELECT key, sum(ended)::integer AS ended, bool_or(is_free) AS is_free
    FROM (
        SELECT
            limit_key AS key,
            CASE WHEN status = 'running' THEN 0 ELSE 1 END AS ended,
            (
                limit_kind IN ('sequence', 'halting')
                AND (status IN ('completed', 'discarded') OR (status = 'failed' AND limit_kind = 'sequence'))
                AND xmin = pg_current_xact_id_if_assigned()::xid
            ) IS TRUE AS is_free
        FROM skipqueue_job
        WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND limit_key IS NOT NULL
        UNION ALL
        SELECT unnest((SELECT %(keys)s::text[])), 0, false
    ) AS touched
    GROUP BY key""",
    more=""" || set_config(
        'skipqueue.ended_jobs', COALESCE(array_agg(wanted.ended) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) || set_config(
        'skipqueue.free_keys', COALESCE(array_agg(wanted.is_free) FILTER (WHERE lock.is_ours), '{}')::text, true
    )""",
)
