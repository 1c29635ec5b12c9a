"""Write, read and delete the rows of workers, with their heartbeats. Workers and supervisors call this."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..values.records import Request
from .notify import WORKERS_PAYLOAD, notify_supervisors

if TYPE_CHECKING:
    from .store import Store

# supervisor: writes the heartbeats of its workers, with their memory and the number of jobs done; worker: inserts its
# own row before it claims, and again if the row was deleted; external app: writes the row of the worker that gets its
# jobs, which stays for ever, with what the settings say now. → id and request of each worker.
HEARTBEAT_WORKERS = """
INSERT INTO skipqueue_worker AS written (
    id, name, hostname, pid, queues, concurrency, memory_mb, jobs_done, deployment, is_external, started_at,
    heartbeat_at
)
SELECT
    worker.id, worker.name, worker.hostname, worker.pid, worker.queues, worker.concurrency, worker.memory_mb,
    COALESCE(worker.jobs_done, 0), COALESCE(worker.deployment, ''), COALESCE(worker.is_external, false),
    statement_timestamp(), statement_timestamp()
FROM json_to_recordset(%(workers)s::json) AS worker (
    id text, name text, hostname text, pid integer, queues jsonb, concurrency integer, memory_mb integer,
    jobs_done bigint, deployment text, is_external boolean
)
ORDER BY worker.id
ON CONFLICT (id) DO UPDATE SET
    heartbeat_at = statement_timestamp(),
    memory_mb = excluded.memory_mb,
    jobs_done = excluded.jobs_done,
    queues = CASE WHEN written.is_external THEN excluded.queues ELSE written.queues END,
    concurrency = CASE WHEN written.is_external THEN excluded.concurrency ELSE written.concurrency END
RETURNING
    written.id,
    COALESCE(
        (SELECT asked.request FROM skipqueue_worker_request AS asked WHERE asked.worker_id = written.id), ''
    )
"""

# worker: writes its heartbeat → the previous and the new heartbeat, and the request; no row if the worker has none. If
# the previous heartbeat is not the one that this worker wrote, its supervisor wrote it. Index: the primary key.
HEARTBEAT_WORKER = """
WITH before AS MATERIALIZED (
    SELECT id, heartbeat_at FROM skipqueue_worker WHERE id = %(worker_id)s FOR NO KEY UPDATE
)
UPDATE skipqueue_worker AS worker
SET heartbeat_at = statement_timestamp()
FROM before
WHERE worker.id = before.id
RETURNING
    before.heartbeat_at,
    worker.heartbeat_at,
    COALESCE((SELECT asked.request FROM skipqueue_worker_request AS asked WHERE asked.worker_id = worker.id), '')
"""

# Worker.restart, Worker.stop → the id if the worker has a row. Every heartbeat returns a committed request. Does
# not lock the row of the worker: in a transaction that stays open, it would keep the heartbeats waiting, and other
# supervisors would recover the jobs of a live worker. Index: the primary keys.
REQUEST_OF_WORKER = """
INSERT INTO skipqueue_worker_request (worker_id, request)
SELECT id, %(request)s FROM skipqueue_worker WHERE id = %(worker_id)s AND NOT is_external
ON CONFLICT (worker_id) DO UPDATE SET request = excluded.request
RETURNING worker_id
"""

# supervisor, to find dead workers → the database's time, and the id and heartbeat of each worker. An external worker
# never counts as dead.
HEARTBEATS = """
SELECT statement_timestamp(), worker.id, worker.heartbeat_at
FROM (SELECT) AS always LEFT JOIN skipqueue_worker AS worker ON NOT worker.is_external
"""

# supervisor, worker: deletes the rows of workers that have stopped, and the requests to workers without a row. Leaves
# requests that are not committed to the next call. Both tables have a few rows for each worker process.
DELETE_WORKERS = """
WITH answered AS MATERIALIZED (
    SELECT asked.worker_id
    FROM skipqueue_worker_request AS asked
    WHERE
        asked.worker_id = ANY (%(worker_ids)s::text[])
        OR NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = asked.worker_id)
    LIMIT 1000
    FOR UPDATE OF asked SKIP LOCKED
),
forgotten AS (
    DELETE FROM skipqueue_worker_request AS request
    WHERE request.worker_id = ANY (ARRAY (SELECT worker_id FROM answered))
)
DELETE FROM skipqueue_worker WHERE id = ANY (%(worker_ids)s::text[])
"""

# supervisor: deletes the rows of workers without a heartbeat for `age` seconds that hold no job.
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
    """Write the heartbeats of these workers. Returns what operators have requested of them, by id.

    Each worker is a mapping of its known columns. A row with `is_external` gets the queues and the concurrency of each
    call.
    """
    rows = store.rows(HEARTBEAT_WORKERS, {"workers": json.dumps(workers)})
    return {id: requested for id, requested in rows if requested}


def heartbeat_worker(store: "Store", worker_id: str) -> tuple[datetime, datetime, str] | None:
    """Write the heartbeat of one worker. Returns its previous and its new heartbeat, and what is requested of it.

    Returns `None` if the worker has no row.
    """
    for before, now, requested in store.rows(HEARTBEAT_WORKER, {"worker_id": worker_id}):
        return before, now, requested
    return None


def request_of_worker(store: "Store", worker_id: str, request: Request) -> bool:
    """Request that the supervisor of a worker restarts the worker, or stops. Returns whether the worker has a row.

    The supervisor is notified after the commit. Without notifications its next heartbeat finds the request.
    """
    rows = store.rows(REQUEST_OF_WORKER, {"worker_id": worker_id, "request": request})
    if rows:
        notify_supervisors(store, WORKERS_PAYLOAD)
    return bool(rows)


def heartbeats(store: "Store") -> tuple[datetime, dict[str, datetime]]:
    """The database's time, and the heartbeat of each worker, by its id, without the external workers."""
    rows = store.rows(HEARTBEATS)
    return rows[0][0], {str(id): heartbeat for _, id, heartbeat in rows if id is not None}


def delete_workers(store: "Store", worker_ids: Sequence[str]) -> None:
    store.execute(DELETE_WORKERS, {"worker_ids": list(worker_ids)})


def prune_workers(store: "Store", worker_ids: Sequence[str], *, age: float) -> None:
    """Of these workers, delete the rows of those that hold no job and have had no heartbeat for `age` seconds."""
    store.execute(PRUNE_WORKERS, {"worker_ids": list(worker_ids), "age": age})
