"""Write, read and delete the rows of workers, with their heartbeats. Workers and supervisors call these functions."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..values.records import Request
from .notify import WORKERS_PAYLOAD, notify_supervisors

if TYPE_CHECKING:
    from .store import Store

# Sent by a supervisor, to write the heartbeats of its workers, with their memory and their number of jobs done. Sent by
# a worker, to insert its own row before it claims jobs, and again if the row was deleted. Sent by an external app, to
# write the permanent row of its external worker with the current settings. Returns the id and the request of each
# worker. Index: the primary key.
HEARTBEAT_WORKERS = """
INSERT INTO skipqueue_worker AS stored (
    id, name, hostname, pid, queues, concurrency, memory_mb, jobs_done, deployment, version, is_external, started_at,
    heartbeat_at
)
SELECT
    worker.id, worker.name, worker.hostname, worker.pid, worker.queues, worker.concurrency, worker.memory_mb,
    COALESCE(worker.jobs_done, 0), COALESCE(worker.deployment, ''), COALESCE(worker.version, ''),
    COALESCE(worker.is_external, false),
    statement_timestamp(), statement_timestamp()
FROM json_to_recordset(%(workers)s::json) AS worker (
    id text, name text, hostname text, pid integer, queues jsonb, concurrency integer, memory_mb integer,
    jobs_done bigint, deployment text, version text, is_external boolean
)
ORDER BY worker.id
ON CONFLICT (id) DO UPDATE SET
    heartbeat_at = statement_timestamp(),
    memory_mb = excluded.memory_mb,
    jobs_done = excluded.jobs_done,
    queues = CASE WHEN stored.is_external THEN excluded.queues ELSE stored.queues END,
    concurrency = CASE WHEN stored.is_external THEN excluded.concurrency ELSE stored.concurrency END
RETURNING
    stored.id,
    COALESCE(
        (SELECT pending.request FROM skipqueue_worker_request AS pending WHERE pending.worker_id = stored.id), ''
    )
"""

# Sent by a worker, to write its heartbeat. Returns the previous and the new heartbeat, and the operator's request; no
# row if the worker has no row. From the previous heartbeat, the worker sees whether its supervisor has written one in
# between. Index: the primary key.
HEARTBEAT_WORKER = """
WITH previous AS MATERIALIZED (
    SELECT id, heartbeat_at FROM skipqueue_worker WHERE id = %(worker_id)s FOR NO KEY UPDATE
)
UPDATE skipqueue_worker AS worker
SET heartbeat_at = statement_timestamp()
FROM previous
WHERE worker.id = previous.id
RETURNING
    previous.heartbeat_at,
    worker.heartbeat_at,
    COALESCE((SELECT pending.request FROM skipqueue_worker_request AS pending WHERE pending.worker_id = worker.id), '')
"""

# Sent by Worker.restart and Worker.stop. Returns the id if the worker has a row. Once the request is committed, the
# worker's next heartbeat finds it. The statement does not lock the worker's row. Otherwise an open transaction of the
# operator would block the worker's heartbeats, so that other supervisors would recover the jobs of a live worker.
# Index: the primary keys.
REQUEST_OF_WORKER = """
INSERT INTO skipqueue_worker_request (worker_id, request)
SELECT id, %(request)s FROM skipqueue_worker WHERE id = %(worker_id)s AND NOT is_external
ON CONFLICT (worker_id) DO UPDATE SET request = excluded.request
RETURNING worker_id
"""

# Sent by supervisors, to find dead workers. Returns the database's time, and the id and heartbeat of each worker.
# Leaves out external workers, which never count as dead. If there is no worker, returns one row with only the time.
HEARTBEATS = """
SELECT statement_timestamp(), worker.id, worker.heartbeat_at
FROM (SELECT) AS empty_row LEFT JOIN skipqueue_worker AS worker ON NOT worker.is_external
"""

# Sent by supervisors and workers. Deletes the rows of workers that have stopped, and requests to workers without a row.
# A request that is not committed yet is deleted by a later call. Both tables have few rows for each worker process.
DELETE_WORKERS = """
WITH obsolete AS MATERIALIZED (
    SELECT request.worker_id
    FROM skipqueue_worker_request AS request
    WHERE
        request.worker_id = ANY (%(worker_ids)s::text[])
        OR NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = request.worker_id)
    LIMIT 1000
    FOR UPDATE OF request SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_worker_request AS request
    WHERE request.worker_id = ANY (ARRAY (SELECT worker_id FROM obsolete))
)
DELETE FROM skipqueue_worker WHERE id = ANY (%(worker_ids)s::text[])
"""

# Sent by supervisors. Deletes the rows of workers that have written no heartbeat for `age` seconds, and hold no job.
# Index: recover.
PRUNE_WORKERS = """
DELETE FROM skipqueue_worker AS worker
WHERE
    worker.id = ANY (%(worker_ids)s::text[])
    AND NOT worker.is_external
    AND worker.heartbeat_at <= statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (
        SELECT FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
    )
"""


def heartbeat_workers(store: "Store", workers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Write the heartbeats of these workers. Returns the requests of operators, by worker id.

    Each worker is a mapping with the columns that the caller knows. For a worker with `is_external`, each call
    also updates the columns `queues` and `concurrency`.
    """
    rows = store.rows(HEARTBEAT_WORKERS, {"workers": json.dumps(workers)})
    return {id: requested for id, requested in rows if requested}


def heartbeat_worker(store: "Store", worker_id: str) -> tuple[datetime, datetime, str] | None:
    """Write the heartbeat of one worker. Returns its previous and its new heartbeat, and the operator's request.

    Returns `None` if the worker has no row.
    """
    for previous, current, requested in store.rows(HEARTBEAT_WORKER, {"worker_id": worker_id}):
        return previous, current, requested
    return None


def request_of_worker(store: "Store", worker_id: str, request: Request) -> bool:
    """Ask the supervisor of a worker to restart the worker, or to stop. Returns whether the worker has a row.

    The supervisor is notified after the commit. Without notifications its next heartbeat finds the request.
    """
    rows = store.rows(REQUEST_OF_WORKER, {"worker_id": worker_id, "request": request})
    if rows:
        notify_supervisors(store, WORKERS_PAYLOAD)
    return bool(rows)


def heartbeats(store: "Store") -> tuple[datetime, dict[str, datetime]]:
    """The database's time, and the heartbeat of each worker by its id, without external workers."""
    rows = store.rows(HEARTBEATS)
    database_time = rows[0][0]
    return database_time, {str(id): heartbeat for _, id, heartbeat in rows if id is not None}


def delete_workers(store: "Store", worker_ids: Sequence[str]) -> None:
    store.execute(DELETE_WORKERS, {"worker_ids": list(worker_ids)})


def prune_workers(store: "Store", worker_ids: Sequence[str], *, age: float) -> None:
    """Delete the rows of these workers, except workers that hold jobs or have a heartbeat in the last `age` seconds."""
    store.execute(PRUNE_WORKERS, {"worker_ids": list(worker_ids), "age": age})
