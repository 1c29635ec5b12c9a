"""Admit one job right after its enqueue, if no other job of its key waits. `admit` says what a permit is."""

from ...queue.fragments import INSERT_JOB, joined
from ..keyed.sql import indented
from .sql import HOLDS, LATER_KEY, PERMIT_GIVEN

# enqueue after the commit, supervisor; outside of a transaction, before LOCK_KEYS → the commit does not wait for the
# disk: a job whose admission is lost in a crash of the server is blocked as before. Reads no table.
ADMIT_WITHOUT_WAITING = "SELECT set_config('synchronous_commit', 'off', true)"

# enqueue of one job, after the commit → nothing. Locks its key for ADMIT_LONE, with the lock of LOCK_KEYS, unless
# another transaction has locked it. Reads no table.
_LOCK_KEY = """
SELECT set_config(
    'skipqueue.locked_key',
    CASE
        WHEN current_setting('transaction_isolation') <> 'read committed' THEN ''
        WHEN pg_try_advisory_xact_lock(1397442896, hashtext({key}::text) & 1023) THEN {key}::text
        ELSE ''
    END,
    true
)
"""


def locking(*, key: str) -> str:
    """Return LOCK_KEY with this expression for the key."""
    return joined(_LOCK_KEY, key=key)


LOCK_KEY = locking(key="%(key)s")


# the same, after LOCK_KEY → its queue, and the key of the rate that it waits for now, if it is admitted: a permit is
# free, and no other job of its key waits. PostgreSQL plans this in half the time of ADMIT_BY_KEY, which admits all
# other jobs. `IS TRUE` keeps it from looking for the row among all those of its key. Index: the primary key, limit_held
# and limit_waiting; for the key of a queue the primary key of queues.
_ADMIT_LONE = """
WITH chosen AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_job AS job
    WHERE
        id = {id}
        AND gate = 'limit'
        AND (limit_key = current_setting('skipqueue.locked_key', true)) IS TRUE
        AND (
            SELECT other.id
            FROM skipqueue_job AS other
            WHERE
                gate = 'limit'
                AND limit_key = {key}::text
                AND other.id <> {id}
            LIMIT 1
        ) IS NULL
        AND (
            SELECT CASE
                WHEN limited.permits IS NULL THEN true
                WHEN job.limit_kind = 'fair' THEN held.number - held.running < GREATEST(job.capacity, held.running)
                ELSE held.number < limited.permits
            END
            FROM
                (
                    SELECT CASE
                        WHEN starts_with({key}, 'queue:')
                        THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr({key}, 7))
                    END AS concurrency
                ) AS changed,
                LATERAL (
                    SELECT CASE WHEN concurrency IS NULL THEN job.capacity ELSE NULLIF(concurrency, 0) END AS permits
                ) AS limited,
                LATERAL (
                    SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
                    FROM (
                        SELECT status
                        FROM skipqueue_job
                        WHERE
                            limit_key = {key}::text
                            AND limited.permits IS NOT NULL
                            AND {holds}
                        LIMIT CASE WHEN job.limit_kind <> 'fair' THEN limited.permits END
                    ) AS holder
                ) AS held
        )
    LIMIT 1
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET {given}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.queue_name, {later}{more}
"""


def admitting_lone(*, id: str, key: str, more: str = "") -> str:
    """Return ADMIT_LONE with these expressions for the job and its key. `more`: other columns that it returns."""
    return joined(
        _ADMIT_LONE, id=id, key=key, later=LATER_KEY, more=more, holds=indented(HOLDS, 28), given=PERMIT_GIVEN
    )


ADMIT_LONE = admitting_lone(id="%(id)s", key="%(key)s")

# enqueue of a job with a limit and without a unique key or a rate, outside of a transaction → as ENQUEUE_AND_NOTIFY, in
# one message: the INSERT and its commit; after it, in another transaction, the admission, and the NOTIFY if there is
# one. The last result has a row if the job is admitted.
ENQUEUE_AND_ADMIT = joined(
    """
BEGIN;
{insert}
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
{without_waiting};
{lock};
{admit}""",
    insert=INSERT_JOB,
    without_waiting=ADMIT_WITHOUT_WAITING,
    lock=locking(key="%(limit_key)s"),
    admit=admitting_lone(
        id="split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint",
        key="%(limit_key)s",
        more=", pg_notify('skipqueue', queue_name)",
    ),
)
