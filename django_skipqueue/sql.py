"""Every statement of the queue, as a named literal.

Above each: who calls it, what it promises, which index it uses. Put values for the `%(…)s` and it runs in psql.

Rules, kept by all of them:

- A status is written as a literal: a parameter could not use a partial index under a generic plan.
- Rows are chosen by a limited, locking `SELECT` in a `MATERIALIZED` CTE and updated by `id = ANY (ARRAY (SELECT …))`,
  or by ctid: the choice is made once, so that never more than the limit is taken, and the planner expects few ids, so
  that it always looks them up by the primary key. Joined instead, a generic plan expects a tenth of the table and reads
  all of it.
- Everything but `SETTLE`, `RELEASE` and `HEARTBEAT` (which own their rows by lease) skips rows that others have locked.
- A batch of values travels as one JSON document, or as arrays out of a scalar subquery: PostgreSQL expects a hundred
  rows of the one and ten of the other, whatever their length, and looks each up.
- What an operator does is noted in the row, by the statement that does it: in `operations`, the newest 50.
- The only clock is the database's.
"""

# enqueue → what the database decides of the row, or nothing where the unique key is taken by a job that is not
# finished. Index: unique. A time to run given as a delay is counted from now; what is not due yet waits as scheduled.
# One row of values, and few columns back: half the time of a SELECT that names the time once, and of RETURNING *.
ENQUEUE = """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    CASE
        WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
            > statement_timestamp()
        THEN 'scheduled' ELSE 'queued'
    END,
    %(priority)s, %(max_attempts)s,
    COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    %(unique_key)s, %(metadata)s::jsonb
)
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND status IN ('scheduled', 'queued', 'running') DO NOTHING
RETURNING id, status, run_after, enqueued_at
"""

# enqueue_many, of calls without unique keys → ids and status of the rows inserted, and the seconds until they are due.
# `args` and `kwargs` have a line for each call: JSON has no line break within. No ON CONFLICT, for which every row is
# inserted first on trial and then confirmed (a sixth of the time), and one row back.
ENQUEUE_MANY = """
WITH inserted AS (
    INSERT INTO skipqueue_job
        (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, metadata)
    SELECT
        %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
        CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' ELSE 'queued' END,
        %(priority)s, %(max_attempts)s, due.run_after, %(metadata)s::jsonb
    FROM
        ROWS FROM (string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10))) AS call (args, kwargs),
        (
            SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
            AS run_after
        ) AS due
    RETURNING id, status, run_after
)
SELECT array_agg(id), min(status), extract(epoch FROM min(run_after) - statement_timestamp())::float8 FROM inserted
"""

# enqueue_many, where calls have unique keys → id, unique_key and status of each row inserted, in the order of calls,
# and the seconds until it is due. Index: unique. The same lines, and `unique_keys`, an element for each; NULL: a call
# without. Those with keys are in the order of these, so that two batches of the same keys wait for each other and never
# deadlock. Of two calls with one key, and of one whose key is taken, nothing is inserted.
ENQUEUE_MANY_UNIQUE = """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, metadata)
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' ELSE 'queued' END,
    %(priority)s, %(max_attempts)s, due.run_after, call.unique_key, %(metadata)s::jsonb
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[])
    ) AS call (args, kwargs, unique_key),
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND status IN ('scheduled', 'queued', 'running') DO NOTHING
RETURNING id, unique_key, status, extract(epoch FROM run_after - statement_timestamp())::float8
"""

# enqueue, enqueue_many: after a conflict, the jobs that hold the keys. Index: unique.
HOLDERS = """
SELECT *
FROM skipqueue_job
WHERE unique_key = ANY (%(unique_keys)s::text[]) AND status IN ('scheduled', 'queued', 'running')
"""

# enqueue, settle, retry, run_now, release, recover, promote: wakes the workers that listen. enqueue, settle, retry,
# postpone: wakes the supervisors where a job is scheduled that is due soon.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)
"""

# The same after a commit, in a transaction of its own, which does not wait until the disk has it: a crash of the server
# ends those who listen as well.
NOTIFY_ALONE = """
SELECT pg_notify(%(channel)s, %(payload)s)
FROM set_config('synchronous_commit', 'off', true)
"""

# worker: wakes when a queue gets jobs. One channel for all queues; the payload is the queue's name.
LISTEN = "LISTEN skipqueue"

# supervisor: wakes when a job is scheduled that is due before its next look. The payload is empty.
LISTEN_SCHEDULED = "LISTEN skipqueue_scheduled"

# claim → at most `limit` jobs, the queues in the listed order, within each by priority, then by the time they are due.
# Each row returned has a lease that no earlier one had. Index: claim, once for each queue, from the position given: the
# negated priority, the time due in seconds since the epoch, and the id after which to look; -101, -infinity, 0 is the
# front. The outer LIMIT stops the inner scans, so that no row is locked that is not taken.
# It stops after the job with which the arguments, as they are stored, come to 4 MB: one look ahead at hundreds of jobs
# must not bring a gigabyte. The sum over the chosen rows costs no more than can be measured.
# The rows are locked where they lie, so they are updated there, by ctid: one lookup less, 8 % of the statement's time.
CLAIM = """
WITH found AS MATERIALIZED (
    SELECT job.ctid AS place, job.size
    FROM
        unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
            AS queue (name, rank, run_after, id),
        LATERAL (
            SELECT ctid, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    LIMIT %(limit)s
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS size_before FROM found) AS found
    WHERE size_before < 4000000
)
UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp()
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.*
"""

# worker → the same claim, and of each job only what running it needs: a whole Job for each row halves the speed.
# `waited` is the time in seconds since the job was due.
CLAIM_TO_RUN = """
WITH found AS MATERIALIZED (
    SELECT job.ctid AS place, job.size
    FROM
        unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
            AS queue (name, rank, run_after, id),
        LATERAL (
            SELECT ctid, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    LIMIT %(limit)s
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS size_before FROM found) AS found
    WHERE size_before < 4000000
)
UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp()
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING
    job.id, job.lease, job.task, job.queue_name, job.args::text, job.kwargs::text, job.attempts, job.max_attempts,
    job.priority, date_part('epoch', job.run_after), date_part('epoch', job.locked_at), job.metadata::text,
    date_part('epoch', clock_timestamp() - statement_timestamp())
"""

# worker without a list of queues → the names of the queues that have jobs waiting, in alphabetical order: at most
# `limit` of those that come after the name `after`. Index: claim, one probe for each name.
QUEUES_WITH_JOBS = """
WITH RECURSIVE queue AS (
    (
        SELECT queue_name AS name
        FROM skipqueue_job
        WHERE status = 'queued' AND queue_name > %(after)s
        ORDER BY queue_name
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT queue_name
        FROM skipqueue_job
        WHERE status = 'queued' AND queue_name > queue.name
        ORDER BY queue_name
        LIMIT 1
    )
    FROM queue
    WHERE queue.name IS NOT NULL
)
SELECT name FROM queue WHERE name IS NOT NULL LIMIT %(limit)s
"""

# worker, after a claim that got no answer in time → of each queue the id of the first job that could be claimed after
# the position given, and its own position; where there is none, no id, and now. Locks nothing and reads no payload, so
# what makes it slow is the way there: dead entries of the index. Index: claim, once for each queue.
FIRST_IN_QUEUES = """
SELECT
    queue.name,
    job.id,
    COALESCE(-job.priority, 0),
    date_part('epoch', COALESCE(job.run_after, statement_timestamp())),
    COALESCE(job.id, 0)
FROM
    unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
        WITH ORDINALITY AS queue (name, rank, run_after, id, place)
    LEFT JOIN LATERAL (
        SELECT id, priority, run_after
        FROM skipqueue_job
        WHERE
            status = 'queued'
            AND queue_name = queue.name
            AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
        ORDER BY (-priority), run_after, id
        LIMIT 1
    ) AS job ON true
ORDER BY queue.place
"""

# first_in_queues → allows the transaction under way another statement timeout.
SET_STATEMENT_TIMEOUT = """
SELECT set_config('statement_timeout', %(timeout)s, true)
"""

# settle → id and lease of the outcomes that were written. An outcome whose lease has passed on matches no row and is
# not written. Writing one ends the lease: a second outcome for the same attempt matches nothing. Index: the primary
# key, in the order of the arrays.
# `started` and `ended` say how long ago the attempt began and ended, in microseconds by the worker's monotonic clock;
# NULL: when the job was claimed, and now.
# Arrays that are shorter than `ids` read as NULL: a batch in which all are simply completed, as nearly all are, names
# only ids, leases and times. Read from a JSON document, the values would take an eighth of the statement's time.
# No status in the WHERE: with one the planner may walk the recover index over every running and dead entry instead
# (55 µs a job instead of 8 µs).
SETTLE = """
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' AND outcome.delay <= 0 THEN 'queued'
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    started_at = COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at),
    finished_at = CASE
        WHEN outcome.status IS DISTINCT FROM 'scheduled'
        THEN statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond'
    END,
    result = outcome.result,
    last_error = COALESCE(outcome.last_error, job.last_error),
    errors = CASE
        WHEN outcome.error IS NULL THEN job.errors
        ELSE (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
            || (
                outcome.error || jsonb_build_object(
                    'at', statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond',
                    'worker_id', job.locked_by
                )
            )
    END,
    metadata = CASE WHEN outcome.metadata IS NULL THEN job.metadata ELSE job.metadata || outcome.metadata END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(metadata)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, metadata)
WHERE job.id = outcome.id AND job.lease = outcome.lease
RETURNING job.id, outcome.lease
"""

# settle, where outcomes put jobs straight back into their queues → the names of these. Index: the primary key.
QUEUES_OF = """
SELECT DISTINCT queue_name
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND status = 'queued'
"""

# worker, after a settle that got no answer, and before a release → those of these jobs that somebody else has locked:
# sent with the others, they would keep them waiting, and fail them at the lock timeout. A row that is gone is not
# locked. Index: the primary key.
LOCKED = """
WITH held AS MATERIALIZED (
    SELECT job.id
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease) JOIN skipqueue_job AS job
        USING (id, lease)
),
free AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM held))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM held
EXCEPT
SELECT id FROM free
"""

# release → id and queue of the jobs given back to their queues, no attempt charged. Fenced as settle is. Index: the
# primary key.
RELEASE = """
UPDATE skipqueue_job AS job
SET status = 'queued',
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    started_at = NULL
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, job.queue_name
"""

# supervisor, after a worker died; worker, after its connection broke → id and queue of the jobs that the worker holds
# and has not begun, given back at no attempt. After a broken connection there may be such that it never heard of: their
# claim was committed, its answer was lost, and nobody recovers the jobs of a live worker. There may be such too that it
# could not give back, because somebody had them locked. Index: recover.
RELEASE_STRAYS = """
WITH stray AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by = %(worker_id)s AND id <> ALL (%(known)s::bigint[])
    ORDER BY locked_at
    LIMIT 10000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'queued',
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    started_at = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM stray))
RETURNING job.id, job.queue_name
"""

# supervisor, after a worker died → a row if it still holds jobs, which somebody has locked. Index: recover.
HOLDS = """
SELECT 1
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(worker_id)s
LIMIT 1
"""

# job.heartbeat, for hand-written loops without a worker row → the id, if the lease still holds. Index: the primary key.
HEARTBEAT = """
UPDATE skipqueue_job AS job
SET locked_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING job.id
"""

# supervisor → how many jobs of each queue have become claimable. Index: promote.
PROMOTE = """
WITH due AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
promoted AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued'
    WHERE job.id = ANY (ARRAY (SELECT id FROM due))
    RETURNING job.queue_name
)
SELECT queue_name, count(*) FROM promoted GROUP BY queue_name
"""

# supervisor → the seconds until the next scheduled job is due, below 0 if it is overdue; no row without one. Index:
# promote.
NEXT_DUE = """
SELECT extract(epoch FROM run_after - statement_timestamp())::float8
FROM skipqueue_job
WHERE status = 'scheduled'
ORDER BY run_after, id
LIMIT 1
"""

# supervisor → the jobs taken back: from the workers named; or, with `locked_before`, from holders without a row of whom
# nothing was heard since that time; or, with neither, from whoever has held a job for longer than `age` and was not
# heard of since. The attempt is charged; the last one fails. Index: recover.
# A job that two workers in a row have died of waits for up to 30 s, so that it does not take the same neighbours with
# it again; with the third it fails, whatever its max_attempts. One worker that loses the job several times counts once.
# A number of an attempt that is not below the next one's belongs to the time before a manual retry, and does not count.
# A job is never taken from a live worker, however long it runs: its worker's row is what counts. Holders without a row
# (hand-written loops) live by the job's own heartbeat.
RECOVER = """
WITH lost AS MATERIALIZED (
    SELECT job.id, job.locked_by, job.locked_at
    FROM skipqueue_job AS job
    WHERE
        job.status = 'running'
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
                        OR worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(age)s)
                    )
            )
        END
    ORDER BY job.locked_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
recovered AS (
    UPDATE skipqueue_job AS job
    SET (status, run_after, finished_at, last_error, errors) = (
            SELECT
                verdict.status,
                CASE
                    WHEN verdict.status = 'scheduled' THEN statement_timestamp() + random() * interval '30 seconds'
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
                (
                    SELECT count(DISTINCT died.worker_id)
                    FROM (
                        SELECT
                            entry ->> 'worker_id' AS worker_id,
                            -- False from the last entry that is no death, or belongs to the time before a retry.
                            bool_and(
                                COALESCE(entry ->> 'exception' = 'django_skipqueue.exceptions.WorkerDied', false)
                                AND (entry ->> 'attempt')::integer < next_attempt
                            ) OVER (ORDER BY position DESC) AS is_in_a_row
                        FROM (
                            SELECT
                                entry,
                                position,
                                COALESCE(
                                    lead((entry ->> 'attempt')::integer) OVER (ORDER BY position), job.attempts
                                ) AS next_attempt
                            FROM jsonb_array_elements(job.errors) WITH ORDINALITY AS error (entry, position)
                        ) AS numbered
                        UNION ALL
                        SELECT job.locked_by, true
                    ) AS died
                    WHERE died.is_in_a_row
                ) AS death (number),
                LATERAL (
                    SELECT
                        CASE
                            WHEN death.number >= 3 OR job.attempts >= job.max_attempts THEN 'failed'
                            WHEN death.number = 2 THEN 'scheduled'
                            ELSE 'queued'
                        END,
                        %(reason)s || CASE
                            WHEN death.number >= 3
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
    recovered.id, recovered.task, recovered.queue_name, recovered.attempts, recovered.status, lost.locked_by,
    lost.locked_at, recovered.metadata::text
FROM recovered JOIN lost USING (id)
ORDER BY recovered.id
"""

# supervisor, prunejobs → how many finished jobs of each status were deleted, within each the oldest first. Index:
# prune, once for each status; and prune_own, which holds only jobs with a retention of their own, a shorter one.
# A retention of NULL keeps a status for ever. A job that is being retried is locked, and skipped; so are those named.
PRUNE = """
WITH expired AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'completed'
            AND finished_at <= statement_timestamp() - %(completed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS completed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'discarded'
            AND finished_at <= statement_timestamp() - %(discarded)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS discarded
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'failed'
            AND finished_at <= statement_timestamp() - %(failed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS failed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND metadata ? 'retention'
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS with_their_own
    LIMIT %(limit)s
),
pruned AS (
    DELETE FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM expired))
    RETURNING job.status
)
SELECT status, count(*) FROM pruned GROUP BY status
"""

# supervisor, prunejobs, after a PRUNE that was refused → the ids of the jobs that it chose. Indexes: as PRUNE.
EXPIRED = """
WITH expired AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'completed'
            AND finished_at <= statement_timestamp() - %(completed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS completed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'discarded'
            AND finished_at <= statement_timestamp() - %(discarded)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS discarded
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'failed'
            AND finished_at <= statement_timestamp() - %(failed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS failed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND metadata ? 'retention'
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS with_their_own
    LIMIT %(limit)s
)
SELECT id FROM expired
"""

# operators → id, queue and status of the failed and discarded jobs put back into their queues, with a fresh set of
# attempts; at once, or spread at random over the seconds that `over` says. A job whose unique key is alive again
# stays as it is; of several that share a key the newest is taken. Index: the primary key.
RETRY = """
WITH chosen AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE
        job.id = ANY (%(ids)s::bigint[])
        AND job.status IN ('failed', 'discarded')
        AND NOT EXISTS (
            SELECT FROM skipqueue_job AS alive
            WHERE alive.unique_key = job.unique_key AND alive.status IN ('scheduled', 'queued', 'running')
        )
        AND NOT EXISTS (
            SELECT FROM skipqueue_job AS twin
            WHERE
                twin.id = ANY (%(ids)s::bigint[])
                AND twin.unique_key = job.unique_key
                AND twin.id > job.id
                AND twin.status IN ('failed', 'discarded')
        )
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN %(over)s::float8 > 0 THEN 'scheduled' ELSE 'queued' END,
    lease = job.lease + 1,
    attempts = 0,
    run_after = statement_timestamp() + make_interval(secs => random() * %(over)s::float8),
    finished_at = NULL,
    metadata = job.metadata - 'unknown_since',
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'retry', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
"""

# operators → the ids of the scheduled and queued jobs that were discarded, with the reason. Index: the primary key.
DISCARD = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('scheduled', 'queued')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    lease = job.lease + 1,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'discard', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

# operators → the ids of the jobs that were cancelled, with the reason: discarded whatever they are at, as long as they
# are not finished. The new lease takes a running one from its worker. Index: the primary key.
CANCEL = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('scheduled', 'queued', 'running')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    lease = job.lease + 1,
    locked_at = NULL,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'cancel', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

# operators → id and queue of the scheduled jobs, retries among them, that may be claimed now. One that is overdue keeps
# its time, and with it its place. Index: the primary key.
RUN_NOW = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'scheduled'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'queued',
    run_after = LEAST(job.run_after, statement_timestamp()),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'run_now', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name
"""

# operators → the ids of the scheduled and queued jobs that now wait for a later time; one that is due later anyway
# stays as it is. A time given as a delay is counted from now. Index: the primary key.
POSTPONE = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND status IN ('scheduled', 'queued')
        AND run_after < COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'scheduled',
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'postpone', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

# worker, about what it has held for a while → those of its leases that have passed on, by id and lease; with the reason
# where a cancel took the job, NULL where anything else did. Index: the primary key.
# A job that its own task has completed was not taken: nobody else completes under this lease.
REVOKED = """
SELECT
    held.id, held.lease, CASE WHEN job.status = 'discarded' AND job.lease = held.lease + 1 THEN job.last_error END
FROM
    unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
    LEFT JOIN skipqueue_job AS job ON job.id = held.id
WHERE
    job.lease IS DISTINCT FROM held.lease
    AND (job.status = 'completed' AND job.lease = held.lease + 1) IS NOT TRUE
"""

# worker, about attempts whose jobs were cancelled meanwhile → the ids of the jobs that keep the error: it says where
# the task was when it ended. A job that has changed hands again keeps nothing; sent twice, an error is kept once.
# Index: the primary key.
KEEP_ERRORS = """
WITH cancelled AS MATERIALIZED (
    SELECT job.id, ended.error
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(errors)s::text[]::jsonb[]))
            AS ended (id, lease, error)
        JOIN skipqueue_job AS job ON job.id = ended.id AND job.lease = ended.lease + 1
    WHERE job.status = 'discarded' AND (job.errors -> -1 @> ended.error) IS NOT TRUE
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET errors = (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
    || (
        (SELECT error FROM cancelled WHERE cancelled.id = job.id)
        || jsonb_build_object('at', statement_timestamp(), 'worker_id', job.locked_by)
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM cancelled))
RETURNING job.id
"""

# supervisor: says that its workers are alive; worker: makes its own row before it claims, also anew.
BEAT = """
INSERT INTO skipqueue_worker (id, name, hostname, pid, queues, concurrency, started_at, heartbeat_at)
SELECT
    worker.id, worker.name, worker.hostname, worker.pid, worker.queues, worker.concurrency,
    statement_timestamp(), statement_timestamp()
FROM json_to_recordset(%(workers)s::json) AS worker (
    id text, name text, hostname text, pid integer, queues jsonb, concurrency integer
)
ORDER BY worker.id
ON CONFLICT (id) DO UPDATE SET heartbeat_at = statement_timestamp()
"""

# worker: says that it is alive → its heartbeat before, by which it sees whether its supervisor beats as well, and its
# heartbeat now; no row where it has none. Index: the primary key.
BEAT_OWN = """
WITH before AS MATERIALIZED (
    SELECT id, heartbeat_at FROM skipqueue_worker WHERE id = %(worker_id)s FOR NO KEY UPDATE
)
UPDATE skipqueue_worker AS worker
SET heartbeat_at = statement_timestamp()
FROM before
WHERE worker.id = before.id
RETURNING before.heartbeat_at, worker.heartbeat_at
"""

# supervisor, to find out which workers are dead → the time, and each worker's heartbeat.
HEARTBEATS = """
SELECT statement_timestamp(), worker.id, worker.heartbeat_at
FROM (SELECT) AS always LEFT JOIN skipqueue_worker AS worker ON true
"""

# supervisor: removes the rows of workers that have stopped.
DEREGISTER = "DELETE FROM skipqueue_worker WHERE id = ANY (%(worker_ids)s::text[])"

# supervisor: removes the rows of workers that it has found dead, once they are old, and nothing of theirs is left to
# recover. Index: recover.
FORGET = """
DELETE FROM skipqueue_worker AS worker
WHERE
    worker.id = ANY (%(worker_ids)s::text[])
    AND worker.heartbeat_at <= statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (
        SELECT FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
    )
"""
