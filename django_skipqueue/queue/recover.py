"""Recover the jobs of dead workers. Supervisors call this.

A recovery skips rows that others have locked, so several processes may recover at once.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..events.events import JobsRecovered
from ..values.codec import shorten
from ..values.records import RecoveredJob, session_name
from .fragments import joined, returning
from .notify import GATES_PAYLOAD, notify_supervisors, wake
from .parameters import BATCH_ROWS

if TYPE_CHECKING:
    from .store import Store

# supervisor, before it recovers the jobs of dead workers → whether each of their sessions that is in a transaction was
# signalled to end. A machine that froze or lost power leaves such a session, with locks on its jobs' rows, and no
# timeout of the server ends it while it waits for the client to read. A session without a transaction locks nothing:
# behind a pooler it may be another client's by now.
# This role may end the sessions of roles that it is a member of; as a member of pg_signal_backend the sessions of all
# roles, except superusers; as a superuser all sessions. The state of a session that it may not see is NULL.
END_SESSIONS = """
SELECT CASE WHEN may.end_it THEN pg_terminate_backend(session.pid) ELSE false END
FROM
    pg_stat_activity AS session
    JOIN pg_roles AS owner ON owner.oid = session.usesysid
    JOIN pg_roles AS own ON own.rolname = current_user
    CROSS JOIN LATERAL (
        SELECT
            own.rolsuper
            OR (
                NOT owner.rolsuper
                AND session.state IS NOT NULL
                AND (pg_has_role(owner.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
            )
    ) AS may (end_it)
WHERE
    session.application_name = ANY (%(names)s::text[])
    AND session.datname = current_database()
    AND (session.xact_start IS NOT NULL OR session.state IS NULL)
    AND session.pid <> pg_backend_pid()
"""

# supervisor → the recovered jobs.
# With `worker_ids`: all jobs that these workers hold. With `locked_before`: the jobs locked before that time whose
# holder has no row. With neither: the jobs locked for longer than `age` whose holder has no row, or a heartbeat older
# than `age`.
# The attempt is charged; a job without attempts left fails. Index: recover.
# `deaths` lists the workers in a row that died while they ran the job. After the second death the job waits for up to
# 30 s, so that it does not run beside the same jobs again; after the first death for up to 5 s, if the process
# `crashed`, because a job may be the cause. From the second death on a job is a suspect, which runs alone in a process.
# If this process dies as well, the job fails, whatever its max_attempts: no other job can be the cause. A worker with
# one slot runs each job alone, and so does a loop written by hand, which has no row. An external worker runs jobs in
# processes without rows in this table. A manual retry empties the list, and so does every outcome except the outcome of
# an unknown task. A job waits again at its last gate with keys, and holds the permit of an earlier gate. A job is
# never taken from a live worker, however long it runs: only the heartbeat in the worker's row counts. A loop written by
# hand has no row: the job's own heartbeat counts. A job is never taken from an external worker.
_RECOVER = """
WITH lost AS MATERIALIZED (
    SELECT job.id, job.locked_by, job.locked_at
    FROM skipqueue_job AS job
    WHERE
        job.status = 'running'{chosen}
    ORDER BY job.locked_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
recovered AS (
    UPDATE skipqueue_job AS job
    SET (deaths, status, gate, run_after, finished_at, last_error, errors) = (
            SELECT
                died.workers,
                verdict.status,
                CASE WHEN verdict.status = 'blocked' THEN {gate} END,
                CASE
                    WHEN verdict.status = 'scheduled'
                    THEN statement_timestamp()
                        + random() * CASE WHEN death.number = 1 THEN interval '5 seconds' ELSE interval '30 seconds' END
                    ELSE job.run_after
                END,
                CASE WHEN verdict.status = 'failed' THEN statement_timestamp() END,
                'WorkerDied: ' || verdict.message,
                (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
                || jsonb_build_object(
                    'attempt', job.attempts,
                    'worker', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
                    'worker_id', job.locked_by,
                    'duration_ms', round(extract(epoch FROM statement_timestamp() - job.locked_at) * 1000, 3),
                    'exception', 'django_skipqueue.exceptions.WorkerDied',
                    'message', verdict.message,
                    'traceback', '',
                    'at', statement_timestamp()
                )
            FROM
                (SELECT {died}) AS died (workers),
                LATERAL (
                    SELECT
                        jsonb_array_length(died.workers),
                        jsonb_array_length(died.workers) >= 3 AND NOT EXISTS (
                            SELECT FROM skipqueue_worker AS worker
                            WHERE worker.id = job.locked_by AND worker.concurrency <> 1 AND NOT worker.is_external
                        )
                ) AS death (number, is_proof),
                LATERAL (
                    SELECT
                        CASE
                            WHEN death.is_proof OR job.attempts >= job.max_attempts THEN 'failed'
                            WHEN death.number >= 2 OR %(crashed)s THEN 'scheduled'
                            WHEN ({gate}) IS NOT NULL THEN 'blocked'
                            ELSE 'queued'
                        END,
                        %(reason)s || CASE
                            WHEN death.is_proof
                            THEN '; three workers in a row died while they ran this job, so it is not run again'
                            ELSE ''
                        END
                ) AS verdict (status, message)
        ),
        lease = job.lease + 1,
        locked_at = NULL
    WHERE job.id = ANY (ARRAY (SELECT id FROM lost))
    RETURNING job.id, job.task, job.queue_name, job.attempts, job.status, job.metadata
)
SELECT
    recovered.id, recovered.task, recovered.queue_name, recovered.attempts AS attempt, recovered.status, lost.locked_by,
    lost.locked_at, recovered.metadata::text AS metadata, statement_timestamp() AS recovered_at
FROM recovered JOIN lost USING (id)
ORDER BY recovered.id
"""

_CHOSEN = """
        AND (
            %(worker_ids)s::text[] IS NOT NULL
            OR job.locked_at <= COALESCE(
                %(locked_before)s::timestamptz, statement_timestamp() - make_interval(secs => %(age)s)
            )
        )
        AND (%(job_ids)s::bigint[] IS NULL OR job.id = ANY (%(job_ids)s::bigint[]))
        AND CASE
            WHEN %(worker_ids)s::text[] IS NOT NULL THEN job.locked_by = ANY (%(worker_ids)s::text[])
            ELSE NOT EXISTS (
                SELECT FROM skipqueue_worker AS worker
                WHERE
                    worker.id = job.locked_by
                    AND (
                        %(locked_before)s::timestamptz IS NOT NULL
                        OR worker.is_external
                        OR worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(age)s)
                    )
            )
        END"""

# A worker that loses the job several times counts once.
_DIED = """CASE WHEN job.deaths ? job.locked_by THEN job.deaths
                    ELSE COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by) END"""


def recovering(*, chosen: str, died: str) -> str:
    """Return the statement for the running jobs with these conditions. `died`: the list with this death in `deaths`."""
    return joined(_RECOVER, gate=returning(charged=True), chosen=chosen, died=died)


RECOVER = recovering(chosen=_CHOSEN, died=_DIED)

NO_HEARTBEAT = "its worker wrote no heartbeat within the worker timeout"


def end_sessions(store: "Store", worker_ids: Sequence[str]) -> tuple[int, int]:
    """End the database sessions of dead workers that are in a transaction: the sessions may have locked jobs.

    Returns the number of sessions that got the signal to end, which takes PostgreSQL a moment, and the number of
    sessions that this role may not end.
    """
    names = [name for name in map(session_name, worker_ids) if name]
    signalled = [is_signalled for (is_signalled,) in store.rows(END_SESSIONS, {"names": names})] if names else []
    return sum(signalled), signalled.count(False)


def recover(
    store: "Store",
    *,
    worker_timeout: float | None = None,
    worker_ids: Sequence[str] | None = None,
    job_ids: Sequence[int] | None = None,
    crashed: bool = False,
    reason: str = NO_HEARTBEAT,
    limit: int = BATCH_ROWS,
) -> list[RecoveredJob]:
    """Recover the jobs of `worker_ids`, or of every holder without a heartbeat for `worker_timeout` seconds.

    The attempt is charged; a job without attempts left fails.

    worker_timeout: in seconds; by default the setting `WORKER_TIMEOUT`.
    job_ids: recover only these jobs.
    crashed: a process has ended, and its jobs may be the cause. So the jobs wait for some seconds.
    """
    age = 0.0 if worker_ids is not None else settings.worker_timeout if worker_timeout is None else worker_timeout
    return _recover(
        store,
        age=age,
        worker_ids=None if worker_ids is None else list(worker_ids),
        job_ids=None if job_ids is None else list(job_ids),
        crashed=crashed,
        reason=shorten(reason),
        limit=limit,
    )


def recover_without_worker(store: "Store", *, locked_before: datetime, limit: int = BATCH_ROWS) -> list[RecoveredJob]:
    """Recover jobs whose holder has no worker row and has written no heartbeat since `locked_before`."""
    return _recover(store, locked_before=locked_before, reason=NO_HEARTBEAT, limit=limit)


def _recover(store: "Store", **chosen: Any) -> list[RecoveredJob]:
    """Run RECOVER. A parameter that is not given restricts nothing."""
    nothing = {"age": 0.0, "crashed": False, **dict.fromkeys(["locked_before", "worker_ids", "job_ids"])}
    return recover_chosen(store, RECOVER, nothing | chosen)


def recover_chosen(store: "Store", statement: str, values: Mapping[str, Any]) -> list[RecoveredJob]:
    """Run this statement, which is RECOVER or has its form, and notify the workers and supervisors."""
    recovered = [RecoveredJob._make(row) for row in store.rows(statement, values)]
    wake(store, (job.queue_name for job in recovered if job.status == "queued"))
    if any(job.status in ("blocked", "scheduled") for job in recovered):
        notify_supervisors(store, GATES_PAYLOAD)  # a scheduled job has given its permit up
    if recovered:
        store.send(JobsRecovered(store.alias, recovered))
    return recovered
