"""The tables of the witness, which record what happened, and the triggers and functions that write them.

- `chaos_promise`, `chaos_need`: the load writes the id of a job, and the ids of its predecessors, in the transaction
  that defers the job.
- `chaos_ledger`: the tasks write `begin` and `end` in autocommit on another connection, and `effect` in the transaction
  of an atomic task.
- `chaos_change`: a trigger writes a row for each change of a job's status, lease or holder, in the transaction of the
  change.
- `chaos_batch`: a trigger writes a row when a batch is made, finished or deleted, numbered like the changes of jobs.
- `chaos_process`: a trigger writes a row for each worker process that registers.
- `chaos_child`: a trigger writes a row for each job that a step of another job has deferred.
- `chaos_signal`: the load writes a row in the transaction that sends a signal.
- `chaos_row`: a task writes a row through Django. The table exists in two schemas: in `chaos_tenant`, which each new
  connection must choose, and in `public`, into which a connection writes that was not set up.

Invariant: a row is committed if and only if the change that it records is committed.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

# `evidence` derives the kind of a change from its columns, not from the statement, which may be rewritten. The result
# or the error of a task contains the lease under which it ran.
TABLES = """
CREATE FUNCTION chaos_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()';

CREATE TABLE chaos_promise (
    token text PRIMARY KEY, job_id bigint NOT NULL, created boolean NOT NULL, task text NOT NULL, priority int NOT NULL
);

CREATE TABLE chaos_need (job_id bigint NOT NULL, needs_job_id bigint NOT NULL, after_failure text NOT NULL);

CREATE TABLE chaos_child (job_id bigint PRIMARY KEY);
CREATE TABLE chaos_signal (job_id bigint NOT NULL, payload text NOT NULL);

CREATE SCHEMA chaos_tenant;
CREATE TABLE public.chaos_row (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id bigint NOT NULL);
CREATE TABLE chaos_tenant.chaos_row (LIKE public.chaos_row INCLUDING ALL);

CREATE TABLE chaos_ledger (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL, lease bigint NOT NULL, what text NOT NULL, at timestamptz NOT NULL DEFAULT chaos_now()
);
CREATE INDEX ON chaos_ledger (job_id);

CREATE TABLE chaos_change (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT chaos_now(),
    job_id bigint NOT NULL, unique_key text,
    before text, after text,
    lease_before bigint, lease bigint,
    attempts_before int, attempts int, max_attempts int,
    holder_before text, holder text,
    ran_under bigint, error text,
    limit_key text, limit_kind text, capacity int,
    rate_key text, rate_interval float8, rate_burst int,
    stated_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    batch_id bigint, calls_back text, had_begun boolean, has_begun boolean, is_ahead boolean
);

CREATE TABLE chaos_batch (
    seq bigint NOT NULL DEFAULT nextval('chaos_change_seq_seq'), batch_id bigint NOT NULL, parent_id bigint,
    what text NOT NULL, calls text[] NOT NULL
);

CREATE TABLE chaos_process (worker_id text PRIMARY KEY, pid int NOT NULL, name text NOT NULL);

CREATE FUNCTION chaos_note_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    error_text text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_change (
            job_id, unique_key, before, lease_before, lease, attempts_before, attempts, max_attempts, holder,
            limit_key, limit_kind, capacity, rate_key, batch_id
        ) VALUES (
            OLD.id, OLD.unique_key, OLD.status, OLD.lease, OLD.lease, OLD.attempts, OLD.attempts, OLD.max_attempts, '',
            OLD.limit_key, OLD.limit_kind, OLD.capacity, OLD.rate_key, OLD.batch_id
        );
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        error_text := CASE
            WHEN NEW.errors IS DISTINCT FROM OLD.errors
                THEN (NEW.errors->-1->>'exception') || ': ' || (NEW.errors->-1->>'message')
            WHEN NEW.status = 'discarded' THEN NEW.last_error
        END;
        IF NEW.status = OLD.status AND NEW.lease = OLD.lease AND NEW.attempts = OLD.attempts
            AND (NEW.status <> 'running' OR NEW.locked_by = OLD.locked_by)
        THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO chaos_change (
        job_id, unique_key, before, after, lease_before, lease, attempts_before, attempts, max_attempts,
        holder_before, holder, ran_under, error, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst,
        batch_id, calls_back, had_begun, has_begun, is_ahead
    ) VALUES (
        NEW.id, NEW.unique_key, OLD.status, NEW.status, OLD.lease, NEW.lease, OLD.attempts, NEW.attempts,
        NEW.max_attempts, OLD.locked_by, NEW.locked_by,
        CASE WHEN NEW.status = 'completed' THEN NEW.result->>'lease'
             ELSE substring(error_text from 'ran under lease ([0-9]+)') END::bigint,
        error_text, NEW.limit_key, NEW.limit_kind, NEW.capacity, NEW.rate_key, NEW.rate_interval, NEW.rate_burst,
        NEW.batch_id, CASE WHEN NEW.task = 'tests.chaos.jobs.called_back' THEN NEW.args->>0 END,
        OLD.started_at IS NOT NULL OR OLD.attempts > 0, NEW.started_at IS NOT NULL OR NEW.attempts > 0,
        NEW.gate IS NOT DISTINCT FROM 'ahead'
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON skipqueue_job
FOR EACH ROW EXECUTE FUNCTION chaos_note_job();

CREATE FUNCTION chaos_note_worker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_process VALUES (NEW.id, NEW.pid, NEW.name) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_note AFTER INSERT ON skipqueue_worker FOR EACH ROW EXECUTE FUNCTION chaos_note_worker();

CREATE FUNCTION chaos_note_child() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_child VALUES (NEW.job_id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_note AFTER INSERT ON skipqueue_child FOR EACH ROW EXECUTE FUNCTION chaos_note_child();

CREATE FUNCTION chaos_note_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_batch (batch_id, parent_id, what, calls) VALUES (OLD.id, OLD.parent_id, 'delete', '{}');
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.finished_at IS NOT DISTINCT FROM OLD.finished_at THEN
        RETURN NULL;
    END IF;
    INSERT INTO chaos_batch (batch_id, parent_id, what, calls) VALUES (
        NEW.id, NEW.parent_id, CASE WHEN NEW.finished_at IS NULL THEN 'open' ELSE 'finish' END,
        ARRAY (SELECT jsonb_object_keys(NEW.callbacks))
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON skipqueue_batch
FOR EACH ROW EXECUTE FUNCTION chaos_note_batch();
"""

EMPTY_TABLES = """
TRUNCATE skipqueue_job, skipqueue_worker, skipqueue_rate, skipqueue_batch, skipqueue_batch_pruned, skipqueue_dependency,
    skipqueue_step, skipqueue_signal, skipqueue_child,
    chaos_promise, chaos_need, chaos_child, chaos_signal, chaos_ledger, chaos_change, chaos_batch, chaos_process,
    public.chaos_row, chaos_tenant.chaos_row RESTART IDENTITY
"""

REAL_TIME = """
CREATE OR REPLACE FUNCTION chaos_now() RETURNS timestamptz LANGUAGE sql
AS $$ SELECT to_timestamp({booted} + split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8) $$
"""
"""Replaces `chaos_now` if the clock of PostgreSQL may be wrong: the time of this computer, in hundredths of a second.
`booted` is the time at which the computer was started."""


def booted() -> float:
    """The time at which this computer was started, in seconds since the epoch."""
    return min(time.time() - float(Path("/proc/uptime").read_text().split()[0]) for _ in range(200))


class Ledger:
    """Writes rows in autocommit. Each thread has its own connection, which bypasses the proxy."""

    def __init__(self) -> None:
        self._local = threading.local()

    def write(self, job_id: int, lease: int, what: str) -> None:
        """Write and commit a row. Raises an error if the connection breaks: then the row may be committed or not."""
        self._run("INSERT INTO chaos_ledger (job_id, lease, what) VALUES (%s, %s, %s)", [job_id, lease, what])

    def count(self, job_id: int, what: str) -> int:
        """The number of rows of this kind that a job has."""
        cursor = self._run("SELECT count(*) FROM chaos_ledger WHERE job_id = %s AND what = %s", [job_id, what])
        return int(cursor.fetchone()[0])

    def _run(self, statement: str, values: list[Any]) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = psycopg.connect(os.environ["CHAOS_WITNESS"], autocommit=True, connect_timeout=10)
            self._local.connection = connection
        try:
            return connection.execute(statement, values)
        except psycopg.Error:
            connection.close()  # the server may refuse writes: reconnect to the new primary
            raise
