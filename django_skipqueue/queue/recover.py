"""Recover the jobs of dead workers. Supervisors call these functions.

A recovery skips rows that other transactions have locked, so several supervisors may recover at the same time.
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

# Sent by supervisors before they recover the jobs of dead workers. Ends the sessions of these workers that are in a
# transaction, and returns for each such session whether PostgreSQL allowed this.
# If a machine freezes or loses power, its session stays open and keeps the locks on its jobs. No server timeout ends
# the session while it waits for the client to read. A session without a transaction is left alone, because it locks
# nothing, and a pooler may have given it to another client.
# A role may end the sessions of the roles that it is a member of. A member of pg_signal_backend may end the sessions of
# all roles except superusers, and a superuser may end all sessions. If a role may not see a session, the session's
# state is NULL.
END_SESSIONS = """
SELECT CASE WHEN may.end_it THEN pg_terminate_backend(session.pid) ELSE false END
FROM
    pg_stat_activity AS session
    JOIN pg_roles AS session_role ON session_role.oid = session.usesysid
    JOIN pg_roles AS our_role ON our_role.rolname = current_user
    CROSS JOIN LATERAL (
        SELECT
            our_role.rolsuper
            OR (
                NOT session_role.rolsuper
                AND session.state IS NOT NULL
                AND (pg_has_role(session_role.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
            )
    ) AS may (end_it)
WHERE
    session.application_name = ANY (%(names)s::text[])
    AND session.datname = current_database()
    AND (session.xact_start IS NOT NULL OR session.state IS NULL)
    AND session.pid <> pg_backend_pid()
"""

# Sent by supervisors. Recovers running jobs, and returns them. Index: recover. Which jobs:
# - With `worker_ids`, all jobs that these workers hold.
# - With `locked_before`, the jobs of processes without a worker row that were locked before this time.
# - With neither, the jobs of workers whose heartbeat is older than `age`, and the jobs of processes without a worker
# row that were locked longer than `age` ago.
# A live worker never loses a job, however long the job runs, because only the heartbeat in the worker's row counts. For
# a process without a worker row, the heartbeat of the job counts. An external worker never loses a job.
# The attempt counts. A job without attempts left fails. A job waits again at its last gate with keys, and keeps the
# permit of an earlier gate.
# `deaths` lists the workers that died, one after the other, while they ran the job. After the first death, the job
# waits for up to 5 s if the process `crashed`, because a job may be the cause. After the second death, it waits for up
# to 30 s, so that it does not run beside the same jobs again. From then on the job is a suspect: it runs alone in a
# process. If this process dies as well, the job fails even if it has attempts left, because no other job can be the
# cause.
# A worker with one slot always runs its jobs alone, and so does a process without a worker row. An external worker runs
# jobs in processes that have no rows in this table. A manual retry empties `deaths`, and so does every outcome except
# the outcome of an unknown task.
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
                ) AS death (number, blames_job),
                LATERAL (
                    SELECT
                        CASE
                            WHEN death.blames_job OR job.attempts >= job.max_attempts THEN 'failed'
                            WHEN death.number >= 2 OR %(crashed)s THEN 'scheduled'
                            WHEN ({gate}) IS NOT NULL THEN 'blocked'
                            ELSE 'queued'
                        END,
                        %(reason)s || CASE
                            WHEN death.blames_job
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

# Adds the worker to `deaths`, unless the list has it already.
_DIED = """CASE WHEN job.deaths ? job.locked_by THEN job.deaths
                    ELSE COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by) END"""


def recovering(*, chosen: str, died: str) -> str:
    """Return the statement that recovers the running jobs which `chosen` selects. `died`: the new value of `deaths`."""
    return joined(_RECOVER, gate=returning(charged=True), chosen=chosen, died=died)


RECOVER = recovering(chosen=_CHOSEN, died=_DIED)

NO_HEARTBEAT = "its worker wrote no heartbeat within the worker timeout"


def end_sessions(store: "Store", worker_ids: Sequence[str]) -> tuple[int, int]:
    """End the database sessions of dead workers that are in a transaction, because they may have locked jobs.

    Returns how many sessions PostgreSQL now ends, which takes a moment, and how many it does not allow us to end.
    """
    names = [name for name in map(session_name, worker_ids) if name]
    allowed = [is_allowed for (is_allowed,) in store.rows(END_SESSIONS, {"names": names})] if names else []
    return sum(allowed), allowed.count(False)


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
    """Recover the jobs of `worker_ids`, or of all workers without a heartbeat for `worker_timeout` seconds.

    The attempt counts. A job without attempts left fails.

    worker_timeout: in seconds; by default the setting `WORKER_TIMEOUT`.
    job_ids: recover only these jobs.
    crashed: whether a process ended unexpectedly. One of its jobs may be the cause, so the jobs wait some seconds.
    """
    timeout = settings.worker_timeout if worker_timeout is None else worker_timeout
    age = 0.0 if worker_ids is not None else timeout
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
    """Recover jobs held by a process that has no worker row, and has written no heartbeat since `locked_before`."""
    return _recover(store, locked_before=locked_before, reason=NO_HEARTBEAT, limit=limit)


def _recover(store: "Store", **chosen: Any) -> list[RecoveredJob]:
    """Run RECOVER. `chosen`: the parameters that select jobs; parameters that are left out select all jobs."""
    defaults = {"age": 0.0, "crashed": False, **dict.fromkeys(["locked_before", "worker_ids", "job_ids"])}
    return recover_chosen(store, RECOVER, defaults | chosen)


def recover_chosen(store: "Store", statement: str, values: Mapping[str, Any]) -> list[RecoveredJob]:
    """Run RECOVER or a statement like it, and notify the workers and supervisors."""
    recovered = [RecoveredJob._make(row) for row in store.rows(statement, values)]
    wake(store, (job.queue_name for job in recovered if job.status == "queued"))
    if any(job.status in ("blocked", "scheduled") for job in recovered):
        notify_supervisors(store, GATES_PAYLOAD)  # a job that is now scheduled has given up its permit
    if recovered:
        store.send(JobsRecovered(store.alias, recovered))
    return recovered
