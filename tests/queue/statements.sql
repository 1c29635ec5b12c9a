-- Every statement of the package as Python has it, without blank lines around it. A test compares this file, and
-- `make contract` writes it. A pipeline, ENQUEUE_AND_NOTIFY and ENQUEUE_AND_ADMIT are sent without indentation.
-- `%(name)s` is a value. The console quotes what is in braces when it sends a statement.

-- CLAIM (queue.claim)
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
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
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
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text,
    job.kwargs::text,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN job.limit_key END AS permit_key

-- TAKE_OVER (queue.claim)
UPDATE skipqueue_job AS job
SET lease = job.lease + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text,
    job.kwargs::text,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN job.limit_key END AS permit_key

-- QUEUES_WITH_JOBS (queue.claim)
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
SELECT name
FROM queue
WHERE
    name IS NOT NULL
    AND (
        %(with_paused)s
        OR (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
    )
LIMIT %(limit)s

-- FIRST_IN_QUEUES (queue.claim)
SELECT
    queue.name AS queue_name,
    job.id AS job_id,
    COALESCE(-job.priority, 0) AS rank,
    date_part('epoch', COALESCE(job.run_after, statement_timestamp())) AS run_after,
    COALESCE(job.id, 0) AS id
FROM
    unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
        WITH ORDINALITY AS queue (name, rank, run_after, id, ordinal)
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
ORDER BY queue.ordinal

-- ENQUEUE_PLAIN (queue.enqueue)
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, 'queued', %(priority)s, %(max_attempts)s,
    %(metadata)s::jsonb
)
RETURNING id, enqueued_at

-- ENQUEUE (queue.enqueue)
INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held, priority, max_attempts, timeout, retention, metadata, unique_seconds, batch_id, unique_key, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN 'scheduled' WHEN %(held)s::boolean THEN 'blocked' WHEN %(limit_key)s::text IS NOT NULL THEN 'blocked' WHEN %(rate_key)s::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN NULL WHEN %(held)s::boolean THEN 'held' WHEN %(limit_key)s::text IS NOT NULL THEN 'limit' WHEN %(rate_key)s::text IS NOT NULL THEN 'rate' END,
    COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    %(held)s, %(priority)s::smallint, %(max_attempts)s::smallint, %(timeout)s::float8, %(retention)s::jsonb, %(metadata)s::jsonb, %(unique_seconds)s::float8, %(batch_id)s::bigint, %(unique_key)s, %(limit_key)s, %(limit_kind)s, %(capacity)s, %(rate_key)s, %(rate_interval)s, %(rate_burst)s
)
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0))) DO NOTHING
RETURNING id, status, gate, run_after, enqueued_at, true AS is_new

-- ENQUEUE_AND_NOTIFY (queue.enqueue)
BEGIN;
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, priority, max_attempts, metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb, 'queued', %(priority)s, %(max_attempts)s,
    %(metadata)s::jsonb
)
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
SELECT pg_notify('skipqueue', %(queue_name)s) FROM set_config('synchronous_commit', 'off', true)

-- INSERTED (queue.enqueue)
SELECT part[2]::bigint, part[3]::timestamptz
FROM string_to_array(current_setting('skipqueue.inserted', true), '|') AS part
WHERE part[1] = %(call)s

-- ENQUEUE_MANY (queue.enqueue)
WITH inserted AS (
INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held, priority, max_attempts, timeout, retention, metadata, unique_seconds, batch_id, unique_key, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' WHEN %(held)s::boolean THEN 'blocked' WHEN call.limit_key::text IS NOT NULL THEN 'blocked' WHEN call.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    CASE WHEN due.run_after > statement_timestamp() THEN NULL WHEN %(held)s::boolean THEN 'held' WHEN call.limit_key::text IS NOT NULL THEN 'limit' WHEN call.rate_key::text IS NOT NULL THEN 'rate' END,
    due.run_after, %(held)s::boolean, %(priority)s::smallint, %(max_attempts)s::smallint, %(timeout)s::float8, %(retention)s::jsonb, %(metadata)s::jsonb, %(unique_seconds)s::float8, %(batch_id)s::bigint, call.unique_key, call.limit_key, CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END, CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END, call.rate_key, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]), unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) AS run_after) AS due
RETURNING id, status, run_after
)
SELECT
    array_agg(id),
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted

-- ADMIT (queue.gates)
WITH due AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = CASE WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
        gate = CASE WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END
    WHERE job.id = ANY (ARRAY (SELECT id FROM due))
    RETURNING job.queue_name, job.gate, CASE job.gate WHEN 'limit' THEN job.limit_key WHEN 'rate' THEN job.rate_key END AS key
)
SELECT queue_name, gate, count(*), array_agg(key) FROM admitted GROUP BY queue_name, gate

-- NEXT_DUE (queue.gates)
SELECT extract(epoch FROM run_after - statement_timestamp())::float8
FROM skipqueue_job
WHERE status = 'scheduled'
ORDER BY run_after, id
LIMIT 1

-- LOST_LEASES (queue.leases)
SELECT
    held.id, held.lease, job.lease - held.lease AS raised_by, job.status, job.locked_by, job.last_error,
    job.errors::text, job.deaths IS NOT NULL AS has_deaths,
    job.status = 'discarded' AND job.operations -> -1 ->> 'verb' IN ('cancel', 'discard') AS is_ended_by_hand
FROM
    unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
    LEFT JOIN skipqueue_job AS job ON job.id = held.id
WHERE job.lease IS DISTINCT FROM held.lease

-- LOCKED_ROWS (queue.leases)
WITH held AS MATERIALIZED (
    SELECT job.id
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease) JOIN skipqueue_job AS job
        USING (id, lease)
),
unlocked AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM held))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM held
EXCEPT
SELECT id FROM unlocked

-- STILL_HOLDING (queue.leases)
SELECT worker.id
FROM unnest(%(worker_ids)s::text[]) AS worker (id)
WHERE EXISTS (
    SELECT FROM (
        SELECT 1 FROM skipqueue_job AS job
        WHERE job.status = 'running' AND job.locked_by = worker.id
        ORDER BY job.locked_at
        LIMIT 1
    ) AS held
)

-- HEARTBEAT_JOB (queue.leases)
UPDATE skipqueue_job AS job
SET locked_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING job.id

-- NOTE_ATTEMPTS (queue.notes)
WITH held AS MATERIALIZED (
    SELECT job.id, noted.started, noted.notes -> 'progress' AS progress, noted.notes -> 'log' AS log
    FROM
        unnest(
            (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
            (SELECT %(notes)s::text[]::jsonb[])
        ) AS noted (id, lease, started, notes)
        JOIN skipqueue_job AS job ON job.id = noted.id AND job.lease = noted.lease
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET (progress, logs) = (
        SELECT
            CASE
                WHEN held.progress IS NULL THEN job.progress
                ELSE held.progress || jsonb_build_object('at', statement_timestamp())
            END,
            CASE
                WHEN held.log IS NULL THEN job.logs
                ELSE (
                    CASE
                        WHEN job.logs -> -1 -> 'lease' = held.log -> 'lease' THEN job.logs - -1
                        WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                        ELSE COALESCE(job.logs, '[]')
                    END
                ) || (
                    held.log || jsonb_build_object(
                        'started', statement_timestamp() - held.started * interval '1 microsecond'
                    )
                )
            END
        FROM held
        WHERE held.id = job.id
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM held))
RETURNING job.id

-- NOTIFY (queue.notify)
SELECT pg_notify(%(channel)s, %(payload)s)

-- NOTIFY_ALONE (queue.notify)
SELECT pg_notify(%(channel)s, %(payload)s)
FROM set_config('synchronous_commit', 'off', true)

-- LISTEN (queue.notify)
LISTEN skipqueue

-- UNLISTEN (queue.notify)
UNLISTEN *

-- LISTEN_AS_SUPERVISOR (queue.notify)
LISTEN skipqueue_supervisors

-- QUEUED_NOW (queue.observe)
WITH RECURSIVE head AS (
    (
        SELECT queue_name, (-priority) AS rank, run_after
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next_head.queue_name, next_head.rank, next_head.run_after
    FROM
        head,
        LATERAL (
            SELECT queue_name, (-priority) AS rank, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (head.queue_name, head.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next_head
),
queue AS MATERIALIZED (
    SELECT queue_name AS name, min(run_after) AS oldest
    FROM (SELECT queue_name, run_after FROM head LIMIT %(limit)s) AS head
    GROUP BY queue_name
),
budget AS MATERIALIZED (
    SELECT LEAST(%(most)s, GREATEST(%(least)s, %(together)s / GREATEST(count(*), 1))) AS most FROM queue
)
SELECT
    queue.name, counted.number, counted.number > budget.most AS has_more,
    GREATEST(date_part('epoch', statement_timestamp() - queue.oldest), 0) AS oldest_seconds
FROM
    queue, budget,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name >= queue.name AND queue_name <= queue.name
            ORDER BY queue_name
            LIMIT (SELECT most + 1 FROM budget)
        ) AS job
    ) AS counted
ORDER BY queue.name

-- RUNNING_NOW (queue.observe)
SELECT queue_name, count(*), GREATEST(date_part('epoch', statement_timestamp() - min(locked_at)), 0)
FROM (
    SELECT queue_name, locked_at FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT %(limit)s
) AS job
GROUP BY queue_name

-- HELD_NOW (queue.observe)
WITH held AS MATERIALIZED (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
    ORDER BY locked_at
    LIMIT %(limit)s
),
tasks_by_worker AS (
    SELECT locked_by, json_object_agg(task, number) AS tasks
    FROM (SELECT locked_by, task, count(*) AS number FROM held GROUP BY locked_by, task) AS counted
    GROUP BY locked_by
),
first_jobs AS (
    SELECT locked_by, json_agg(json_build_object('id', id, 'task', task, 'since', locked_at) ORDER BY place) AS jobs
    FROM (SELECT *, row_number() OVER (PARTITION BY locked_by ORDER BY locked_at, id) AS place FROM held) AS numbered
    WHERE place <= %(shown)s
    GROUP BY locked_by
)
SELECT locked_by, tasks::text, jobs::text
FROM tasks_by_worker JOIN first_jobs USING (locked_by)

-- EXPECTED_QUEUED (queue.observe)
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'queued' AND queue_name = %(queue_name)s

-- EXPECTED_RUNNING (queue.observe)
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'running'

-- RETRY (queue.operate)
WITH named AS MATERIALIZED (
    SELECT id, unique_key, max(id) OVER (PARTITION BY unique_key) AS newest_id
    FROM skipqueue_job
    WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND status IN ('failed', 'discarded')
),
chosen AS MATERIALIZED (
    SELECT id, queue_name, task, args, kwargs, status, finished_at, unique_key COLLATE "C" AS place
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (
            SELECT named.id
            FROM named
            WHERE
                named.unique_key IS NULL
                OR (
                    named.id = named.newest_id
                    AND NOT EXISTS (
                        SELECT FROM skipqueue_job AS holder
                        WHERE
                            holder.unique_key = named.unique_key
                            AND holder.unique_key IS NOT NULL
                            AND (
                                holder.unique_seconds > 0
                                OR (
                                    holder.finished_at IS NULL
                                    AND (holder.unique_seconds IS NULL OR holder.lease = 0)
                                )
                            )
                            AND holder.id <> named.id
                            AND (
                                holder.finished_at IS NULL
                                OR holder.enqueued_at + make_interval(secs => holder.unique_seconds)
                                > statement_timestamp()
                            )
                    )
                )
        ))
        AND status IN ('failed', 'discarded')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
INSERT INTO skipqueue_job AS job (id, queue_name, task, args, kwargs, status, finished_at)
SELECT id, queue_name, task, args, kwargs, status, finished_at FROM chosen ORDER BY place
ON CONFLICT (id) DO UPDATE
SET status = CASE WHEN statement_timestamp() + make_interval(secs => %(over)s::float8) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN statement_timestamp() + make_interval(secs => %(over)s::float8) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
    lease = job.lease + 1,
    attempts = 0,
    started_at = CASE
        WHEN %(over)s::float8 > 0
            AND (job.limit_kind = 'sequence' OR (job.limit_kind = 'halting' AND job.status = 'discarded'))
        THEN NULL
        ELSE job.started_at
    END,
    run_after = statement_timestamp() + make_interval(secs => %(over)s::float8 * CASE
            WHEN job.limit_kind IN ('sequence', 'halting') THEN (hashtext(job.limit_key) & 1023) / 1024.0
            ELSE random()
        END),
    finished_at = NULL,
    deaths = NULL,
    unknown_since = NULL,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'retry', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
RETURNING job.id, job.queue_name, job.status

-- DISCARD (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND (
            (finished_at IS NULL AND status <> 'running')
            OR (status = 'failed' AND limit_kind = 'halting')
        )
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    gate = NULL,
    lease = job.lease + 1,
    finished_at = statement_timestamp(),
    last_error = CASE WHEN job.status = 'failed' THEN job.last_error ELSE %(last_error)s END,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'discard', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status

-- CANCEL (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    gate = NULL,
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
RETURNING job.id, job.queue_name, job.status

-- RUN_NOW (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND status = 'scheduled'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
    run_after = LEAST(job.run_after, statement_timestamp()),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'run_now', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status

-- POSTPONE (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND run_after < COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'scheduled',
    gate = NULL,
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'postpone', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status

-- RESCHEDULE (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'reschedule', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'from', job.run_after, 'to', COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status

-- CHANGE_PRIORITY (queue.operate)
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND priority <> %(priority)s::smallint
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET priority = %(priority)s::smallint,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'change_priority', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'from', job.priority, 'to', %(priority)s::smallint
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status

-- NOTE_COPIES (queue.operate)
UPDATE skipqueue_job AS job
SET operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'run_again', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'job', (%(originals)s::jsonb ->> job.id::text)::bigint
    )
WHERE id = ANY (%(ids)s::bigint[])
RETURNING id

-- EXPIRED (queue.prune)
SELECT expired.id
FROM
    (
        VALUES
            ('completed', %(completed)s::interval), ('failed', %(failed)s::interval), ('discarded', %(discarded)s::interval)
    ) AS period (status, retention),
    LATERAL (
        SELECT id
        FROM skipqueue_job AS job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND status = period.status
            AND finished_at <= statement_timestamp() - period.retention - make_interval(secs => %(grace)s)
            AND id <> ALL (%(skipped)s::bigint[])
            AND (
                SELECT true
                FROM
                    skipqueue_child AS child
                    JOIN skipqueue_step AS step ON step.job_id = child.parent_id AND step.name = child.name
                    JOIN skipqueue_job AS parent ON parent.id = child.parent_id
                WHERE child.job_id = job.id AND step.recorded_at IS NULL AND parent.finished_at IS NULL
                LIMIT 1
            ) IS NOT TRUE
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS expired
UNION ALL
SELECT id
FROM (
    SELECT id
    FROM skipqueue_job AS job
    WHERE
        status IN ('completed', 'failed', 'discarded')
        AND retention IS NOT NULL
        AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
            <= (statement_timestamp() - make_interval(secs => %(grace)s)) AT TIME ZONE 'UTC'
        AND id <> ALL (%(skipped)s::bigint[])
            AND (
                SELECT true
                FROM
                    skipqueue_child AS child
                    JOIN skipqueue_step AS step ON step.job_id = child.parent_id AND step.name = child.name
                    JOIN skipqueue_job AS parent ON parent.id = child.parent_id
                WHERE child.job_id = job.id AND step.recorded_at IS NULL AND parent.finished_at IS NULL
                LIMIT 1
            ) IS NOT TRUE
    ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS with_own_retention
LIMIT %(limit)s

-- PRUNE (queue.prune)
WITH pruned AS (
    DELETE FROM skipqueue_job
    WHERE id = ANY (ARRAY (SELECT unnest(%(ids)s::bigint[])))
    RETURNING id, status, batch_id
),
steps AS (
    DELETE FROM skipqueue_step AS step USING pruned WHERE step.job_id = pruned.id
),
signals AS (
    DELETE FROM skipqueue_signal AS signal USING pruned WHERE signal.job_id = pruned.id
),
children AS (
    DELETE FROM skipqueue_child AS child USING pruned WHERE child.parent_id = pruned.id
),
counted_jobs AS (
    INSERT INTO skipqueue_batch_pruned (batch_id, status, jobs)
    SELECT per_status.batch_id, per_status.status, per_status.jobs
    FROM (
        SELECT batch_id, status, count(*) FILTER (WHERE NOT is_callback) AS jobs
        FROM (
            SELECT
                pruned.batch_id,
                pruned.status,
                coalesce(
                    (
                        SELECT pruned.id = ANY (batch.callback_ids)
                        FROM skipqueue_batch AS batch
                        WHERE batch.id = pruned.batch_id
                    ),
                    false
                ) AS is_callback
            FROM pruned
            WHERE pruned.batch_id IS NOT NULL
        ) AS job
        GROUP BY batch_id, status
    ) AS per_status
    WHERE (
        WITH RECURSIVE enclosing AS (
            SELECT parent_id, finished_at FROM skipqueue_batch WHERE id = per_status.batch_id
            UNION ALL
            SELECT outside.parent_id, outside.finished_at
            FROM enclosing JOIN skipqueue_batch AS outside ON outside.id = enclosing.parent_id
        )
        SELECT bool_or(finished_at IS NULL) FROM enclosing
    )
),
unmet AS MATERIALIZED (
    SELECT needs.job_id, needs.position, pruned.status
    FROM
        pruned
        JOIN skipqueue_dependency AS needs ON needs.needs_job_id = pruned.id
    WHERE NOT needs.is_met
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs
),
marked AS (
    UPDATE skipqueue_dependency AS needs
    SET pruned_as = unmet.status
    FROM unmet
    WHERE needs.job_id = unmet.job_id AND needs.position = unmet.position
),
deleted_needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING pruned
    WHERE needs.job_id = pruned.id AND needs.is_met
)
SELECT status, count(*) FROM pruned GROUP BY status

-- PRUNE_LAG (queue.prune)
SELECT extract(epoch FROM statement_timestamp() - min(due))::float8
FROM (
    SELECT job.finished_at + period.retention AS due
    FROM
        (
            VALUES
                ('completed', %(completed)s::interval), ('failed', %(failed)s::interval), ('discarded', %(discarded)s::interval)
        ) AS period (status, retention),
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ('completed', 'failed', 'discarded')
                AND status = period.status
                AND finished_at <= statement_timestamp() - period.retention
            ORDER BY finished_at
            LIMIT 1
        ) AS job
    UNION ALL
    SELECT due AT TIME ZONE 'UTC'
    FROM (
        SELECT (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8) AS due
        FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND retention IS NOT NULL
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
        LIMIT 1
    ) AS with_own_retention
) AS oldest

-- PAUSE_QUEUE (queue.queues)
INSERT INTO skipqueue_queue AS queue (name, paused_at, paused_until, paused_by, reason)
VALUES (
    %(name)s,
    statement_timestamp(),
    statement_timestamp() + make_interval(secs => %(seconds)s::float8),
    %(by)s,
    %(reason)s
)
ON CONFLICT (name) DO UPDATE SET
    paused_at = excluded.paused_at,
    paused_until = excluded.paused_until,
    paused_by = excluded.paused_by,
    reason = excluded.reason
RETURNING queue.paused_until, queue.paused_by, queue.reason

-- RESUME_QUEUE (queue.queues)
UPDATE skipqueue_queue
SET paused_at = NULL, paused_until = NULL, paused_by = '', reason = ''
WHERE name = %(name)s AND paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
RETURNING name

-- PAUSED_QUEUES (queue.queues)
SELECT name
FROM skipqueue_queue
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
LIMIT %(limit)s

-- CHANGE_QUEUE (queue.queues)
WITH chosen AS MATERIALIZED (
    SELECT
        id,
        CASE WHEN NOT starts_with(limit_key, 'queue:') THEN limit_key ELSE %(limit_key)s::text END AS limit_key,
        CASE WHEN NOT starts_with(limit_key, 'queue:') THEN limit_kind ELSE %(limit_kind)s::text END AS limit_kind,
        CASE WHEN NOT starts_with(limit_key, 'queue:') THEN capacity ELSE %(capacity)s::smallint END AS capacity,
        COALESCE(NOT starts_with(limit_key, 'queue:') AND (status = 'queued' OR gate = 'rate'), false) AS keeps_limit,
        CASE WHEN NOT starts_with(rate_key, 'queue:') THEN rate_key ELSE %(rate_key)s::text END AS rate_key,
        CASE WHEN NOT starts_with(rate_key, 'queue:') THEN rate_interval ELSE %(rate_interval)s::float8 END AS rate_interval,
        CASE WHEN NOT starts_with(rate_key, 'queue:') THEN rate_burst ELSE %(rate_burst)s::smallint END AS rate_burst
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND queue_name <> %(queue_name)s::text
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET queue_name = %(queue_name)s::text,
    status = CASE
        WHEN job.status IN ('queued', 'blocked') AND (job.id, job.limit_key, job.rate_key) IS DISTINCT FROM (chosen.id, chosen.limit_key, chosen.rate_key) THEN CASE WHEN job.held::boolean THEN 'blocked' WHEN (CASE WHEN NOT chosen.keeps_limit THEN chosen.limit_key END)::text IS NOT NULL THEN 'blocked' WHEN chosen.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE job.status
    END,
    gate = CASE
        WHEN job.status IN ('queued', 'blocked') AND (job.id, job.limit_key, job.rate_key) IS DISTINCT FROM (chosen.id, chosen.limit_key, chosen.rate_key) THEN CASE WHEN job.held::boolean THEN 'held' WHEN (CASE WHEN NOT chosen.keeps_limit THEN chosen.limit_key END)::text IS NOT NULL THEN 'limit' WHEN chosen.rate_key::text IS NOT NULL THEN 'rate' END
        ELSE job.gate
    END,
    limit_key = chosen.limit_key,
    limit_kind = chosen.limit_kind,
    capacity = chosen.capacity,
    rate_key = chosen.rate_key,
    rate_interval = chosen.rate_interval,
    rate_burst = chosen.rate_burst,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'change_queue', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'from', job.queue_name, 'to', %(queue_name)s::text
    )
FROM chosen
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen)) AND job.id = chosen.id
RETURNING job.id, job.queue_name, job.status

-- END_SESSIONS (queue.recover)
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

-- RECOVER (queue.recover)
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
                        OR worker.is_external
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
    SET (deaths, status, gate, run_after, finished_at, last_error, errors) = (
            SELECT
                died.workers,
                verdict.status,
                CASE WHEN verdict.status = 'blocked' THEN CASE WHEN job.rate_key IS NOT NULL THEN 'rate' WHEN job.limit_kind = 'concurrency' THEN 'limit' END END,
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
                (SELECT CASE WHEN job.deaths ? job.locked_by THEN job.deaths
                    ELSE COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by) END) AS died (workers),
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
                            WHEN (CASE WHEN job.rate_key IS NOT NULL THEN 'rate' WHEN job.limit_kind = 'concurrency' THEN 'limit' END) IS NOT NULL THEN 'blocked'
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

-- RELEASE (queue.release)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN %(later)s::boolean THEN 'scheduled'
        WHEN (CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END) IS NOT NULL THEN 'blocked'
        ELSE 'queued'
    END,
    run_after = CASE
        WHEN %(later)s::boolean THEN statement_timestamp() + random() * interval '10 seconds'
        ELSE job.run_after
    END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    gate = CASE WHEN NOT %(later)s::boolean THEN CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END END,
    started_at = NULL,
    operations = CASE
        WHEN %(interrupted)s::boolean
        THEN COALESCE(
            CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'release', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts, 'since', job.started_at
        )
        ELSE job.operations
    END
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, job.queue_name, job.gate, CASE job.gate WHEN 'limit' THEN job.limit_key WHEN 'rate' THEN job.rate_key END

-- RELEASE_ORPHANS (queue.release)
WITH orphan AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_by = %(worker_id)s
        AND locked_at <= COALESCE(%(claimed_until)s, 'infinity'::timestamptz)
        AND id <> ALL (%(known)s::bigint[])
    ORDER BY locked_at
    LIMIT 10000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN (CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END) IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    gate = CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END,
    started_at = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM orphan))
RETURNING job.id, job.queue_name, job.gate, CASE job.gate WHEN 'limit' THEN job.limit_key WHEN 'rate' THEN job.rate_key END

-- LIMIT_STATEMENTS (queue.session)
SELECT
    set_config('statement_timeout', %(timeout)s, true),
    set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)

-- SET_LOCK_TIMEOUT (queue.session)
SELECT set_config('lock_timeout', %(timeout)s, true)

-- BACKEND_PID (queue.session)
SELECT pg_backend_pid()

-- LOCK_TIMEOUT (queue.session)
SELECT current_setting('lock_timeout')

-- BOUND_TRANSACTIONS (queue.session)
SELECT set_config('transaction_timeout', %(timeout)s, false)

-- PLAN_ONCE (queue.session)
SET plan_cache_mode = force_generic_plan

-- DROP_PLANS (queue.session)
DISCARD PLANS

-- SETTLE (queue.settle)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    gate = CASE WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END END,
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
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
            )
        )
    END,
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease
RETURNING job.id, outcome.lease, job.batch_id

-- SETTLE_SNOOZES (queue.settle)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    gate = CASE WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END END,
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
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
            )
        )
    END,
    operations = CASE
        WHEN outcome.refund IS NULL OR outcome.refund = 0 OR outcome.is_unknown THEN job.operations
        ELSE COALESCE(
            CASE
                WHEN job.operations -> -1 ->> 'verb' = 'snooze' THEN job.operations - -1
                WHEN job.operations -> 49 IS NOT NULL THEN job.operations - 0
                ELSE job.operations
            END,
            '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'snooze', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts,
            'since', statement_timestamp() - outcome.started * interval '1 microsecond',
            'times', 1 + CASE
                WHEN
                    job.operations -> -1 ->> 'verb' = 'snooze'
                    AND jsonb_typeof(job.operations -> -1 -> 'times') = 'number'
                THEN (job.operations -> -1 ->> 'times')::numeric
                ELSE 0
            END
        )
    END,
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease
RETURNING job.id, outcome.lease, job.batch_id

-- QUEUES_OF (queue.settle)
SELECT job.queue_name, job.gate, CASE job.gate WHEN 'limit' THEN job.limit_key WHEN 'rate' THEN job.rate_key END FROM skipqueue_job AS job
WHERE
    job.id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    AND job.status IN ('queued', 'blocked')

-- APPEND_CANCELLED_ERRORS (queue.settle)
WITH cancelled AS MATERIALIZED (
    SELECT job.id, attempt.error
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(errors)s::text[]::jsonb[]))
            AS attempt (id, lease, error)
        JOIN skipqueue_job AS job ON job.id = attempt.id AND job.lease = attempt.lease + 1
    WHERE job.status = 'discarded' AND (job.errors -> -1 @> attempt.error) IS NOT TRUE
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

-- HEARTBEAT_WORKERS (queue.workers)
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

-- HEARTBEAT_WORKER (queue.workers)
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

-- REQUEST_OF_WORKER (queue.workers)
INSERT INTO skipqueue_worker_request (worker_id, request)
SELECT id, %(request)s FROM skipqueue_worker WHERE id = %(worker_id)s AND NOT is_external
ON CONFLICT (worker_id) DO UPDATE SET request = excluded.request
RETURNING worker_id

-- HEARTBEATS (queue.workers)
SELECT statement_timestamp(), worker.id, worker.heartbeat_at
FROM (SELECT) AS empty_row LEFT JOIN skipqueue_worker AS worker ON NOT worker.is_external

-- DELETE_WORKERS (queue.workers)
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

-- PRUNE_WORKERS (queue.workers)
DELETE FROM skipqueue_worker AS worker
WHERE
    worker.id = ANY (%(worker_ids)s::text[])
    AND NOT worker.is_external
    AND worker.heartbeat_at <= statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (
        SELECT FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
    )

-- BLOCKED_BY_QUEUE (console.queues_and_workers)
SELECT queue_name, count(*)
FROM (
    SELECT queue_name FROM skipqueue_job WHERE status = 'blocked' ORDER BY id LIMIT %(limit)s
) AS job
GROUP BY queue_name

-- EXPECTED_BLOCKED (console.queues_and_workers)
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'blocked'

-- LAST_JOBS_OF_WORKER (console.workers)
SELECT id, task, queue_name, status, attempts, started_at, finished_at
FROM (
    (SELECT * FROM skipqueue_job WHERE status = 'completed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'failed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'discarded' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'scheduled' ORDER BY run_after LIMIT (SELECT %(limit)s))
) AS recent
WHERE status <> 'running' AND (locked_by = %(name)s OR left(locked_by, length(%(name)s) + 1) = %(name)s || ':')
ORDER BY coalesce(finished_at, started_at) DESC NULLS LAST, id DESC
LIMIT 20

-- PROCESSES_OF_WORKER (console.workers)
SELECT process, count(*) FILTER (WHERE NOT is_lost), min(began_at), max(ended_at), count(*) FILTER (WHERE is_lost)
FROM (
    SELECT locked_by AS process, started_at AS began_at, finished_at AS ended_at, false AS is_lost
    FROM (
    (SELECT * FROM skipqueue_job WHERE status = 'completed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'failed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'discarded' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'scheduled' ORDER BY run_after LIMIT (SELECT %(limit)s))
) AS recent
    UNION ALL
    SELECT entry ->> 'worker_id', NULL, NULL, true
    FROM (
    (SELECT * FROM skipqueue_job WHERE status = 'completed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'failed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'discarded' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'scheduled' ORDER BY run_after LIMIT (SELECT %(limit)s))
) AS recent, jsonb_array_elements(errors) AS entry
    WHERE errors <> '[]' AND entry ->> 'exception' = %(died)s
) AS attempt
WHERE process = %(name)s OR left(process, length(%(name)s) + 1) = %(name)s || ':'
GROUP BY process
ORDER BY max(began_at) DESC NULLS LAST, process
LIMIT 20

-- CLAIM_ROWS (models.managers)
WITH found AS MATERIALIZED (
    SELECT job.ctid AS place, job.size
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name),
        LATERAL (
            SELECT ctid, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
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

-- ARCHIVE (parts.archive.move)
WITH pruned AS (
    DELETE FROM skipqueue_job
    WHERE id = ANY (ARRAY (SELECT unnest(%(ids)s::bigint[])))
    RETURNING *
), archived AS (
    INSERT INTO skipqueue_archivedjob (limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst, unique_key, unique_seconds, queue_name, task, args, kwargs, status, priority, attempts, max_attempts, run_after, enqueued_at, locked_by, started_at, result, last_error, errors, progress, logs, timeout, retention, metadata, operations, id, finished_at, records)
    SELECT limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst, unique_key, unique_seconds, queue_name, task, args, kwargs, status, priority, attempts, max_attempts, run_after, enqueued_at, locked_by, started_at, result, last_error, errors, progress, logs, timeout, retention, metadata, operations, id, finished_at, (
        SELECT jsonb_build_object(
            'steps', jsonb_agg(to_jsonb(step) ORDER BY step.number),
            'signals', (
                SELECT jsonb_agg(to_jsonb(signal) ORDER BY signal.sent_at)
                FROM skipqueue_signal AS signal
                WHERE signal.job_id = pruned.id
            ),
            'children', (
                SELECT jsonb_agg(to_jsonb(child) ORDER BY child.name, child.position)
                FROM (
                    SELECT * FROM skipqueue_child WHERE parent_id = pruned.id ORDER BY name, position LIMIT 1000
                ) AS child
            )
        )
        FROM skipqueue_step AS step
        WHERE step.job_id = pruned.id
        HAVING count(*) > 0
    )
    FROM pruned
    WHERE %(kept)s::interval IS NULL OR finished_at > statement_timestamp() - %(kept)s::interval
),
steps AS (
    DELETE FROM skipqueue_step AS step USING pruned WHERE step.job_id = pruned.id
),
signals AS (
    DELETE FROM skipqueue_signal AS signal USING pruned WHERE signal.job_id = pruned.id
),
children AS (
    DELETE FROM skipqueue_child AS child USING pruned WHERE child.parent_id = pruned.id
),
counted_jobs AS (
    INSERT INTO skipqueue_batch_pruned (batch_id, status, jobs)
    SELECT per_status.batch_id, per_status.status, per_status.jobs
    FROM (
        SELECT batch_id, status, count(*) FILTER (WHERE NOT is_callback) AS jobs
        FROM (
            SELECT
                pruned.batch_id,
                pruned.status,
                coalesce(
                    (
                        SELECT pruned.id = ANY (batch.callback_ids)
                        FROM skipqueue_batch AS batch
                        WHERE batch.id = pruned.batch_id
                    ),
                    false
                ) AS is_callback
            FROM pruned
            WHERE pruned.batch_id IS NOT NULL
        ) AS job
        GROUP BY batch_id, status
    ) AS per_status
    WHERE (
        WITH RECURSIVE enclosing AS (
            SELECT parent_id, finished_at FROM skipqueue_batch WHERE id = per_status.batch_id
            UNION ALL
            SELECT outside.parent_id, outside.finished_at
            FROM enclosing JOIN skipqueue_batch AS outside ON outside.id = enclosing.parent_id
        )
        SELECT bool_or(finished_at IS NULL) FROM enclosing
    )
),
unmet AS MATERIALIZED (
    SELECT needs.job_id, needs.position, pruned.status
    FROM
        pruned
        JOIN skipqueue_dependency AS needs ON needs.needs_job_id = pruned.id
    WHERE NOT needs.is_met
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs
),
marked AS (
    UPDATE skipqueue_dependency AS needs
    SET pruned_as = unmet.status
    FROM unmet
    WHERE needs.job_id = unmet.job_id AND needs.position = unmet.position
),
deleted_needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING pruned
    WHERE needs.job_id = pruned.id AND needs.is_met
)
SELECT status, count(*) FROM pruned GROUP BY status

-- LOCK_ARCHIVE (parts.archive.move)
LOCK TABLE skipqueue_archivedjob IN SHARE UPDATE EXCLUSIVE MODE

-- MISSING_PARTITIONS (parts.archive.move)
WITH RECURSIVE finished AS (
    SELECT each_status.status, oldest.finished_at
    FROM
        (VALUES ('completed'), ('failed'), ('discarded')) AS each_status (status),
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ('completed', 'failed', 'discarded')
                AND status = each_status.status
                AND finished_at > coalesce(statement_timestamp() - %(kept)s::interval, '-infinity')
                AND finished_at <= statement_timestamp()
            ORDER BY finished_at
            LIMIT 1
        ) AS oldest
    UNION ALL
    SELECT finished.status, first_of_later_month.finished_at
    FROM
        finished,
        LATERAL (
            SELECT finished_at
            FROM skipqueue_job
            WHERE
                status IN ('completed', 'failed', 'discarded')
                AND status = finished.status
                AND finished_at >= (date_trunc('month', finished.finished_at AT TIME ZONE 'UTC') + interval '1 month')
                    AT TIME ZONE 'UTC'
                AND finished_at <= statement_timestamp()
            ORDER BY finished_at
            LIMIT 1
        ) AS first_of_later_month
), needed (month) AS (
    SELECT date_trunc('month', finished_at AT TIME ZONE 'UTC') FROM finished
    UNION
    SELECT date_trunc('month', statement_timestamp() AT TIME ZONE 'UTC') + months * interval '1 month'
    FROM generate_series(0, %(ahead)s) AS months
), archive AS (
    SELECT oid, oid::regclass AS name, relnamespace::regnamespace AS schema
    FROM pg_class
    WHERE oid = 'skipqueue_archivedjob'::regclass
), existing AS (
    SELECT
        coalesce(substring(bounds FROM 'FROM [(]''([^'']+)''')::timestamptz, '-infinity') AS first,
        coalesce(substring(bounds FROM 'TO [(]''([^'']+)''')::timestamptz, 'infinity') AS after
    FROM
        archive,
        pg_inherits,
        LATERAL (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = inhrelid) AS part (bounds)
    WHERE inhparent = archive.oid
), missing AS (
    SELECT
        month AT TIME ZONE 'UTC' AS first,
        (month + interval '1 month') AT TIME ZONE 'UTC' AS after,
        'skipqueue_archivedjob_' || to_char(month, 'YYYY_MM') AS partition
    FROM needed
)
SELECT
    format('CREATE TABLE IF NOT EXISTS %%s.%%I (LIKE %%s INCLUDING ALL)', schema, partition, name),
    format(
        'ALTER TABLE %%s ATTACH PARTITION %%s.%%I FOR VALUES FROM (%%L) TO (%%L)',
        name, schema, partition, first, after
    )
FROM missing, archive
WHERE NOT EXISTS (SELECT FROM existing WHERE existing.first < missing.after AND existing.after > missing.first)
ORDER BY missing.first

-- EXPIRED_PARTITION (parts.archive.move)
SELECT format('DROP TABLE IF EXISTS %%s', inhrelid::regclass)
FROM
    pg_inherits,
    LATERAL (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = inhrelid) AS part (bounds),
    LATERAL (SELECT substring(bounds FROM 'TO [(]''([^'']+)''')::timestamptz) AS until (after)
WHERE
    inhparent = 'skipqueue_archivedjob'::regclass
    AND after <= statement_timestamp() - %(kept)s::interval
ORDER BY after
LIMIT 1

-- INSERT_DEPENDENCIES (parts.batches.dependencies)
WITH locked AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (%(needs)s::bigint[])
    ORDER BY job.id
    FOR KEY SHARE
),
inserted AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT waiting.id, needed.position, needed.id, %(after_failure)s::text
    FROM
        unnest(%(ids)s::bigint[]) AS waiting (id),
        unnest(%(needs)s::bigint[]) WITH ORDINALITY AS needed (id, position)
)
SELECT id FROM unnest(%(needs)s::bigint[]) AS needed (id)
EXCEPT
SELECT id FROM locked
ORDER BY id

-- PREDECESSORS (parts.batches.dependencies)
WITH RECURSIVE needed AS (
    (
        SELECT needs_job_id AS id
        FROM skipqueue_dependency
        WHERE NOT is_met AND needs_job_id > %(after)s
        ORDER BY needs_job_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT needs_job_id
        FROM skipqueue_dependency
        WHERE NOT is_met AND needs_job_id > needed.id
        ORDER BY needs_job_id
        LIMIT 1
    )
    FROM needed
    WHERE needed.id IS NOT NULL
)
SELECT
    needed.id,
    CASE coalesce(
        (SELECT job.status FROM skipqueue_job AS job WHERE job.id = needed.id),
        (
            SELECT pruned.pruned_as
            FROM skipqueue_dependency AS pruned
            WHERE NOT pruned.is_met AND pruned.needs_job_id = needed.id
            LIMIT 1
        ),
        'discarded'
    )
        WHEN 'completed' THEN true
        WHEN 'failed' THEN dependant.goes_on_after_failure
        WHEN 'discarded' THEN dependant.goes_on_after_failure
        ELSE false
    END
FROM
    needed,
    LATERAL (
        SELECT (
            SELECT waiting.job_id
            FROM skipqueue_dependency AS waiting
            WHERE
                NOT waiting.is_met
                AND waiting.needs_job_id = needed.id
                AND waiting.after_failure IN ('discard', 'run')
            LIMIT 1
        ) IS NOT NULL
    ) AS dependant (goes_on_after_failure)
WHERE needed.id IS NOT NULL
LIMIT %(limit)s

-- LOCK_DEPENDANTS (parts.batches.dependencies)
SELECT job.id
FROM
    skipqueue_dependency AS needed
    JOIN skipqueue_job AS job ON job.id = needed.job_id
WHERE
    needed.needs_job_id = ANY (%(ids)s::bigint[])
    AND NOT needed.is_met
    AND job.held
    AND CASE coalesce(
        (SELECT earlier.status FROM skipqueue_job AS earlier WHERE earlier.id = needed.needs_job_id),
        needed.pruned_as,
        'discarded'
    )
        WHEN 'completed' THEN true
        WHEN 'failed' THEN needed.after_failure <> 'wait'
        WHEN 'discarded' THEN needed.after_failure <> 'wait'
        ELSE false
    END
LIMIT %(limit)s
FOR NO KEY UPDATE OF job SKIP LOCKED

-- ADMIT_DEPENDANTS (parts.batches.dependencies)
WITH needed AS MATERIALIZED (
    SELECT
        needs.ctid AS place,
        needs.job_id,
        needs.needs_job_id,
        needs.after_failure,
        coalesce(
            (SELECT earlier.status FROM skipqueue_job AS earlier WHERE earlier.id = needs.needs_job_id),
            needs.pruned_as,
            'discarded'
        ) AS state
    FROM skipqueue_dependency AS needs
    WHERE needs.job_id = ANY (%(ids)s::bigint[]) AND NOT needs.is_met
),
judged AS MATERIALIZED (
    SELECT
        place,
        job_id,
        state = 'completed' OR (state IN ('failed', 'discarded') AND after_failure <> 'wait') AS is_met,
        bool_or(
            state NOT IN ('completed', 'failed', 'discarded') OR (state <> 'completed' AND after_failure = 'wait')
        ) OVER needs AS waits,
        min(needs_job_id) FILTER (WHERE state IN ('failed', 'discarded') AND after_failure = 'discard')
            OVER needs AS failed_need
    FROM needed
    WINDOW needs AS (PARTITION BY job_id)
),
to_mark AS MATERIALIZED (
    SELECT needs.ctid AS place
    FROM skipqueue_dependency AS needs
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM judged WHERE is_met OR failed_need IS NOT NULL))
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs SKIP LOCKED
),
marked AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = true
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM to_mark))
)
UPDATE skipqueue_job AS job
SET held = NULL,
    status = CASE
        WHEN job.finished_at IS NOT NULL THEN job.status
        WHEN verdict.failed_need IS NOT NULL THEN 'discarded'
        WHEN job.status = 'blocked' THEN CASE WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE job.status
    END,
    gate = CASE WHEN job.status = 'blocked' AND verdict.failed_need IS NULL THEN CASE WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END END,
    lease = CASE WHEN verdict.failed_need IS NULL OR job.finished_at IS NOT NULL THEN job.lease ELSE job.lease + 1 END,
    finished_at = CASE
        WHEN verdict.failed_need IS NULL THEN job.finished_at
        ELSE coalesce(job.finished_at, statement_timestamp())
    END,
    last_error = CASE
        WHEN verdict.failed_need IS NULL OR job.finished_at IS NOT NULL THEN job.last_error
        ELSE 'Discarded: it needs job ' || verdict.failed_need || ', which has not completed.'
    END
FROM (SELECT DISTINCT job_id, waits, failed_need FROM judged) AS verdict
WHERE
    job.id = verdict.job_id
    AND job.held
    AND (verdict.failed_need IS NOT NULL OR NOT verdict.waits)
RETURNING
    job.id,
    job.task,
    job.queue_name,
    job.status,
    job.gate,
    job.batch_id,
    job.metadata::text AS metadata,
    CASE WHEN job.finished_at = statement_timestamp() THEN verdict.failed_need END AS needs_job_id

-- FORGET_DEPENDANTS (parts.batches.dependencies)
WITH left_over AS MATERIALIZED (
    SELECT
        needs.ctid AS place,
        (SELECT job.id FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NULL AS is_gone
    FROM skipqueue_dependency AS needs
    WHERE
        needs.needs_job_id = ANY (%(ids)s::bigint[])
        AND NOT needs.is_met
        AND (SELECT job.held FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NOT TRUE
    LIMIT %(limit)s
    FOR UPDATE OF needs SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_dependency AS needs
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM left_over WHERE is_gone))
),
met AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = true
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM left_over WHERE NOT is_gone))
)
SELECT count(*) FROM left_over

-- NEEDS (parts.batches.dependencies)
SELECT
    needs.needs_job_id,
    job.task AS task,
    coalesce(job.status, needs.pruned_as) AS status,
    job.result::text AS result,
    job.id IS NULL AS is_gone
FROM
    skipqueue_dependency AS needs
    LEFT JOIN skipqueue_job AS job ON job.id = needs.needs_job_id
WHERE needs.job_id = %(id)s
ORDER BY needs.position

-- UNMET_NEEDS (parts.batches.dependencies)
SELECT
    unmet.needs_job_id,
    unmet.status,
    unmet.is_gone,
    unmet.after_failure = 'wait' AND coalesce(unmet.status, 'discarded') IN ('failed', 'discarded') AS is_stuck,
    count(*) OVER () AS number
FROM (
    SELECT
        needs.needs_job_id,
        needs.position,
        needs.after_failure,
        coalesce(job.status, needs.pruned_as) AS status,
        job.id IS NULL AS is_gone
    FROM
        skipqueue_dependency AS needs
        LEFT JOIN skipqueue_job AS job ON job.id = needs.needs_job_id
    WHERE needs.job_id = %(id)s AND NOT needs.is_met
) AS unmet
ORDER BY is_stuck DESC, unmet.position
LIMIT %(limit)s

-- INSERT_BATCH (parts.batches.finish)
INSERT INTO skipqueue_batch (name, parent_id, callbacks)
VALUES (%(name)s, %(parent_id)s::bigint, %(callbacks)s::jsonb)
RETURNING id

-- JOIN_BATCH (parts.batches.finish)
SELECT id
FROM skipqueue_batch
WHERE id = %(id)s AND finished_at IS NULL
FOR KEY SHARE

-- OPEN_BATCHES (parts.batches.finish)
SELECT id
FROM skipqueue_batch
WHERE finished_at IS NULL AND id > %(after)s
ORDER BY id
LIMIT %(limit)s

-- LIMIT_LOCKS (parts.batches.finish)
SELECT set_config('lock_timeout', %(timeout)s, true)

-- DONE_BATCHES (parts.batches.finish)
SELECT batch.id
FROM skipqueue_batch AS batch
WHERE
    batch.id = ANY (
        ARRAY (
            SELECT unnest(%(ids)s::bigint[])
            UNION
            SELECT parent_id FROM skipqueue_batch WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NOT NULL
        )
    )
    AND batch.finished_at IS NULL
    AND 
(
        SELECT newest.id
        FROM
            (VALUES ('running'), ('queued'), ('blocked'), ('scheduled')) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = batch.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    ) IS NULL
AND (
    WITH RECURSIVE inside AS (
        SELECT id, finished_at, callback_ids IS NOT NULL OR failed > 0 OR discarded > 0 AS may_have_unfinished
        FROM skipqueue_batch
        WHERE parent_id = batch.id
        UNION ALL
        SELECT
            deeper.id,
            deeper.finished_at,
            deeper.callback_ids IS NOT NULL OR deeper.failed > 0 OR deeper.discarded > 0
        FROM inside JOIN skipqueue_batch AS deeper ON deeper.parent_id = inside.id
    )
    SELECT inside.id
    FROM inside
    WHERE inside.finished_at IS NULL OR (inside.may_have_unfinished AND (
        SELECT newest.id
        FROM
            (VALUES ('running'), ('queued'), ('blocked'), ('scheduled')) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = inside.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    ) IS NOT NULL)
    LIMIT 1
) IS NULL

-- LOCK_BATCHES (parts.batches.finish)
SELECT id
FROM skipqueue_batch
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED

-- FINISH_BATCHES (parts.batches.finish)
WITH counted AS MATERIALIZED (
    SELECT batch.id, totals.completed, totals.failed, totals.discarded, totals.has_failed_callbacks
    FROM
        skipqueue_batch AS batch,
        LATERAL (
            WITH RECURSIVE member AS (
                SELECT
                    batch.id AS id,
                    NULL::bigint[] AS callback_ids,
                    true AS is_counted,
                    false AS has_sums,
                    0::bigint AS completed
                UNION ALL
                SELECT
                    inside.id,
                    inside.callback_ids,
                    member.is_counted AND (inside.failed > 0 OR inside.discarded > 0),
                    member.is_counted AND inside.failed = 0 AND inside.discarded = 0,
                    inside.completed
                FROM member JOIN skipqueue_batch AS inside ON inside.parent_id = member.id
            )
            SELECT
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'completed'), 0)::bigint AS completed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'failed'), 0)::bigint AS failed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'discarded'), 0)::bigint AS discarded,
                coalesce(bool_or(jobs.is_callback AND jobs.status <> 'completed'), false) AS has_failed_callbacks
            FROM
                member,
                LATERAL (
                    SELECT job.status, count(*) AS number, false AS is_callback
                    FROM skipqueue_job AS job
                    WHERE
                        member.is_counted
                        AND job.batch_id = member.id
                        AND (job.id = ANY (member.callback_ids)) IS NOT TRUE
                    GROUP BY job.status
                    UNION ALL
                    SELECT pruned.status, pruned.jobs, pruned.jobs = 0
                    FROM skipqueue_batch_pruned AS pruned
                    WHERE pruned.batch_id = member.id AND (member.is_counted OR pruned.jobs = 0)
                    UNION ALL
                    SELECT 'completed', member.completed, false
                    WHERE member.has_sums
                    UNION ALL
                    SELECT callback.status, 0, true
                    FROM skipqueue_job AS callback
                    WHERE callback.id = ANY (member.callback_ids)
                ) AS jobs
        ) AS totals
    WHERE batch.id = ANY (%(ids)s::bigint[]) AND batch.finished_at IS NULL AND 
(
        SELECT newest.id
        FROM
            (VALUES ('running'), ('queued'), ('blocked'), ('scheduled')) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = batch.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    ) IS NULL
AND (
    WITH RECURSIVE inside AS (
        SELECT id, finished_at, callback_ids IS NOT NULL OR failed > 0 OR discarded > 0 AS may_have_unfinished
        FROM skipqueue_batch
        WHERE parent_id = batch.id
        UNION ALL
        SELECT
            deeper.id,
            deeper.finished_at,
            deeper.callback_ids IS NOT NULL OR deeper.failed > 0 OR deeper.discarded > 0
        FROM inside JOIN skipqueue_batch AS deeper ON deeper.parent_id = inside.id
    )
    SELECT inside.id
    FROM inside
    WHERE inside.finished_at IS NULL OR (inside.may_have_unfinished AND (
        SELECT newest.id
        FROM
            (VALUES ('running'), ('queued'), ('blocked'), ('scheduled')) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = inside.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    ) IS NOT NULL)
    LIMIT 1
) IS NULL

)
UPDATE skipqueue_batch AS batch
SET finished_at = statement_timestamp(),
    completed = counted.completed,
    failed = counted.failed,
    discarded = counted.discarded
FROM counted
WHERE batch.id = ANY (%(ids)s::bigint[]) AND batch.id = counted.id
RETURNING
    batch.id AS id,
    batch.name AS name,
    batch.parent_id AS parent_id,
    batch.callbacks::text AS callbacks,
    batch.completed AS completed,
    batch.failed AS failed,
    batch.discarded AS discarded,
    batch.failed > 0 OR batch.discarded > 0 OR counted.has_failed_callbacks AS is_failure

-- NOTE_CALLBACKS (parts.batches.finish)
UPDATE skipqueue_batch
SET callback_ids = %(callback_ids)s::bigint[],
    callbacks = %(callbacks)s::jsonb
WHERE id = %(id)s

-- PROGRESS (parts.batches.finish)
WITH RECURSIVE member AS (
    SELECT id AS root, id, callback_ids, finished_at IS NULL AS is_counted, completed, failed, discarded
    FROM skipqueue_batch
    WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT
        member.root,
        inside.id,
        inside.callback_ids,
        inside.finished_at IS NULL OR inside.failed > 0 OR inside.discarded > 0,
        inside.completed,
        inside.failed,
        inside.discarded
    FROM member JOIN skipqueue_batch AS inside ON inside.parent_id = member.id
    WHERE member.is_counted
)
SELECT member.root, counted.status, sum(counted.jobs)::bigint
FROM
    member,
    LATERAL (
        SELECT stored.status, stored.jobs
        FROM
            (
                VALUES ('completed', member.completed), ('failed', member.failed), ('discarded', member.discarded)
            ) AS stored (status, jobs)
        WHERE NOT member.is_counted
        UNION ALL
        SELECT each_status.status, limited.jobs
        FROM
            (VALUES ('running'), ('queued'), ('blocked'), ('scheduled'), ('completed'), ('failed'), ('discarded')) AS each_status (status),
            LATERAL (
                SELECT count(*) AS jobs
                FROM (
                    SELECT
                    FROM skipqueue_job
                    WHERE
                        batch_id = member.id
                        AND status = each_status.status
                        AND member.is_counted
                        AND (id = ANY (member.callback_ids)) IS NOT TRUE
                    LIMIT %(most)s
                ) AS job
            ) AS limited
        UNION ALL
        SELECT status, jobs FROM skipqueue_batch_pruned WHERE batch_id = member.id AND member.is_counted
    ) AS counted
WHERE counted.jobs > 0
GROUP BY member.root, counted.status

-- PRUNE_BATCHES (parts.batches.finish)
WITH expired AS MATERIALIZED (
    SELECT batch.id
    FROM skipqueue_batch AS batch
    WHERE
        batch.finished_at IS NOT NULL
        AND batch.finished_at <= statement_timestamp() - least(%(completed)s::interval, %(failed)s::interval)
        AND batch.finished_at <= statement_timestamp() - CASE
            WHEN batch.failed > 0 OR batch.discarded > 0 THEN %(failed)s::interval
            ELSE %(completed)s::interval
        END
        AND (
            SELECT outside.id
            FROM skipqueue_batch AS outside
            WHERE outside.id = batch.parent_id AND (outside.finished_at IS NULL OR outside.parent_id IS NOT NULL)
            LIMIT 1
        ) IS NULL
        AND (
            SELECT job.id
            FROM skipqueue_job AS job
            WHERE job.batch_id = batch.id AND job.status IN ('scheduled', 'blocked', 'queued', 'running')
            LIMIT 1
        ) IS NULL
        AND (
            SELECT callback.id
            FROM skipqueue_job AS callback
            WHERE callback.id = ANY (batch.callback_ids) AND callback.status IN ('failed', 'discarded')
            LIMIT 1
        ) IS NULL
    ORDER BY batch.finished_at
    LIMIT %(limit)s
    FOR UPDATE OF batch SKIP LOCKED
),
forgotten AS (
    DELETE FROM skipqueue_batch_pruned WHERE batch_id = ANY (ARRAY (SELECT id FROM expired))
),
deleted AS (
    DELETE FROM skipqueue_batch AS batch WHERE batch.id = ANY (ARRAY (SELECT id FROM expired)) RETURNING batch.id
)
SELECT count(*) FROM deleted

-- EXPLAIN_CLAIM (parts.history.claim_costs)
EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)
SELECT ctid
FROM skipqueue_job
WHERE status = 'queued' AND queue_name = %(queue_name)s
ORDER BY (-priority), run_after, id
LIMIT %(limit)s

-- ENTRIES_READ (parts.history.claim_costs)
SELECT COALESCE(pg_stat_get_xact_tuples_returned(to_regclass('skipqueue_job_claim')), 0)

-- CLAIM_COSTS (parts.history.claim_costs)
SELECT known.queue_name, sample.claim_pages, sample.claim_rows
FROM
    (
        SELECT queue_name
        FROM skipqueue_rollup
        WHERE span = 0 AND task = '' AND queue_name > ''
        ORDER BY queue_name
        LIMIT %(limit)s
    ) AS known,
    LATERAL (
        SELECT claim_pages, claim_rows
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = known.queue_name
            AND task = ''
            AND starts_at > statement_timestamp() - interval '5 minutes'
            AND claim_pages IS NOT NULL
        ORDER BY starts_at DESC
        LIMIT 1
    ) AS sample

-- KNOWN_QUEUES (parts.history.console)
SELECT queue_name
FROM skipqueue_rollup
WHERE span = 0 AND task = '' AND queue_name > ''
ORDER BY queue_name
LIMIT %(limit)s

-- ROLLED_UP (parts.history.console)
SELECT
    queue_name, task, enqueued, recovered, lost, completed, retried, snoozed, failed, discarded,
    array_to_json(waited)::text, waited_seconds, array_to_json(ran)::text, ran_seconds
FROM skipqueue_rollup
WHERE span = 0 AND task > ''
ORDER BY GREATEST(enqueued, completed + retried + snoozed + failed + discarded) DESC, queue_name, task
LIMIT %(limit)s

-- CLAIMS (parts.history.console)
SELECT array_to_json(claim_times)::text, claim_seconds
FROM skipqueue_rollup
WHERE span = 0 AND queue_name = '' AND task = '' AND starts_at = to_timestamp(0)
LIMIT 1

-- RATES_NOW (parts.history.console)
SELECT queue_name, ended, date_part('epoch', statement_timestamp() - first_minute) / 60, waited, waited_longest
FROM (
    SELECT queue_name, task, completed + failed + discarded AS ended, waited, waited_longest, first_minute
    FROM
        skipqueue_rollup,
        (SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s)) AS age (first_minute)
    WHERE span = 60 AND starts_at >= first_minute
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task = ''

-- FAILING (parts.history.causes)
WITH cause AS MATERIALIZED (
    SELECT
        task, exception, place, first_at, last_at, last_line, last_job_id, first_deployment, last_deployment,
        acknowledged_at, acknowledged_by, note, acknowledged_number, came_back_at
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND last_at > statement_timestamp() - interval '7 days' ORDER BY last_at DESC LIMIT %(among)s
),
queues_of_task AS MATERIALIZED (
    SELECT task, array_agg(queue_name) AS queue_names
    FROM skipqueue_rollup
    WHERE span = 0 AND task = ANY (ARRAY (SELECT task FROM cause))
    GROUP BY task
),
ranked AS MATERIALIZED (
    SELECT
        cause.*, counted_minutes.last_ten_minutes, counted_minutes.last_hour, counted_hours.last_day,
        CASE
            WHEN
                cause.acknowledged_at > COALESCE(cause.came_back_at, '-infinity')
                AND counted_minutes.last_ten_minutes < GREATEST(20, 3 * cause.acknowledged_number)
            THEN 3
            WHEN counted_minutes.last_ten_minutes > 0 THEN 0
            WHEN EXISTS (
    SELECT
    FROM
        (VALUES (60, cause.last_at + interval '1 hour'), (3600, statement_timestamp())) AS width (seconds, newest_start)
        JOIN skipqueue_rollup AS ended ON ended.span = width.seconds
    WHERE
        ended.queue_name = ANY (queues_of_task.queue_names)
        AND ended.task = cause.task
        AND ended.starts_at > cause.last_at
        AND ended.starts_at <= LEAST(width.newest_start, statement_timestamp() - make_interval(secs => width.seconds))
        AND ended.completed + ended.retried + ended.failed + ended.discarded > 0
) THEN 2
            ELSE 1
        END AS standing
    FROM
        cause
        LEFT JOIN queues_of_task ON queues_of_task.task = cause.task,
        LATERAL (
            SELECT
                COALESCE(sum(number), 0)::bigint AS last_hour,
                COALESCE(
                    sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '10 minutes'), 0
                )::bigint AS last_ten_minutes
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS counted_minutes,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS last_day
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS counted_hours
    ORDER BY standing, counted_minutes.last_ten_minutes DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.standing, ranked.first_at, ranked.last_at, ranked.last_line,
    ranked.last_job_id, ranked.first_deployment, ranked.last_deployment, ranked.acknowledged_at,
    ranked.acknowledged_by, ranked.note, ranked.last_ten_minutes, ranked.last_hour, ranked.last_day,
    COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    ranked,
    LATERAL (
        SELECT
            sum(number) AS number, array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (ranked.task, ranked.exception, ranked.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
ORDER BY ranked.standing, ranked.last_ten_minutes DESC, ranked.last_at DESC

-- FAILING_OF_TASK (parts.history.causes)
WITH cause AS MATERIALIZED (
    SELECT
        task, exception, place, first_at, last_at, last_line, last_job_id, first_deployment, last_deployment,
        acknowledged_at, acknowledged_by, note, acknowledged_number, came_back_at
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND task = %(task)s AND last_at > statement_timestamp() - interval '7 days'
    ORDER BY last_at DESC
    LIMIT %(among)s
),
queues_of_task AS MATERIALIZED (
    SELECT task, array_agg(queue_name) AS queue_names
    FROM skipqueue_rollup
    WHERE span = 0 AND task = ANY (ARRAY (SELECT task FROM cause))
    GROUP BY task
),
ranked AS MATERIALIZED (
    SELECT
        cause.*, counted_minutes.last_ten_minutes, counted_minutes.last_hour, counted_hours.last_day,
        CASE
            WHEN
                cause.acknowledged_at > COALESCE(cause.came_back_at, '-infinity')
                AND counted_minutes.last_ten_minutes < GREATEST(20, 3 * cause.acknowledged_number)
            THEN 3
            WHEN counted_minutes.last_ten_minutes > 0 THEN 0
            WHEN EXISTS (
    SELECT
    FROM
        (VALUES (60, cause.last_at + interval '1 hour'), (3600, statement_timestamp())) AS width (seconds, newest_start)
        JOIN skipqueue_rollup AS ended ON ended.span = width.seconds
    WHERE
        ended.queue_name = ANY (queues_of_task.queue_names)
        AND ended.task = cause.task
        AND ended.starts_at > cause.last_at
        AND ended.starts_at <= LEAST(width.newest_start, statement_timestamp() - make_interval(secs => width.seconds))
        AND ended.completed + ended.retried + ended.failed + ended.discarded > 0
) THEN 2
            ELSE 1
        END AS standing
    FROM
        cause
        LEFT JOIN queues_of_task ON queues_of_task.task = cause.task,
        LATERAL (
            SELECT
                COALESCE(sum(number), 0)::bigint AS last_hour,
                COALESCE(
                    sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '10 minutes'), 0
                )::bigint AS last_ten_minutes
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS counted_minutes,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS last_day
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS counted_hours
    ORDER BY standing, counted_minutes.last_ten_minutes DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.standing, ranked.first_at, ranked.last_at, ranked.last_line,
    ranked.last_job_id, ranked.first_deployment, ranked.last_deployment, ranked.acknowledged_at,
    ranked.acknowledged_by, ranked.note, ranked.last_ten_minutes, ranked.last_hour, ranked.last_day,
    COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    ranked,
    LATERAL (
        SELECT
            sum(number) AS number, array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (ranked.task, ranked.exception, ranked.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
ORDER BY ranked.standing, ranked.last_ten_minutes DESC, ranked.last_at DESC

-- FAILURES_OF (parts.history.causes)
WITH cause AS MATERIALIZED (
    SELECT
        task, exception, place, first_at, last_at, last_line, last_job_id, first_deployment, last_deployment,
        acknowledged_at, acknowledged_by, note, acknowledged_number, came_back_at
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND task = %(task)s AND exception = %(exception)s AND place = %(place)s
),
queues_of_task AS MATERIALIZED (
    SELECT task, array_agg(queue_name) AS queue_names
    FROM skipqueue_rollup
    WHERE span = 0 AND task = ANY (ARRAY (SELECT task FROM cause))
    GROUP BY task
),
ranked AS MATERIALIZED (
    SELECT
        cause.*, counted_minutes.last_ten_minutes, counted_minutes.last_hour, counted_hours.last_day,
        CASE
            WHEN
                cause.acknowledged_at > COALESCE(cause.came_back_at, '-infinity')
                AND counted_minutes.last_ten_minutes < GREATEST(20, 3 * cause.acknowledged_number)
            THEN 3
            WHEN counted_minutes.last_ten_minutes > 0 THEN 0
            WHEN EXISTS (
    SELECT
    FROM
        (VALUES (60, cause.last_at + interval '1 hour'), (3600, statement_timestamp())) AS width (seconds, newest_start)
        JOIN skipqueue_rollup AS ended ON ended.span = width.seconds
    WHERE
        ended.queue_name = ANY (queues_of_task.queue_names)
        AND ended.task = cause.task
        AND ended.starts_at > cause.last_at
        AND ended.starts_at <= LEAST(width.newest_start, statement_timestamp() - make_interval(secs => width.seconds))
        AND ended.completed + ended.retried + ended.failed + ended.discarded > 0
) THEN 2
            ELSE 1
        END AS standing
    FROM
        cause
        LEFT JOIN queues_of_task ON queues_of_task.task = cause.task,
        LATERAL (
            SELECT
                COALESCE(sum(number), 0)::bigint AS last_hour,
                COALESCE(
                    sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '10 minutes'), 0
                )::bigint AS last_ten_minutes
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS counted_minutes,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS last_day
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS counted_hours
    ORDER BY standing, counted_minutes.last_ten_minutes DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.standing, ranked.first_at, ranked.last_at, ranked.last_line,
    ranked.last_job_id, ranked.first_deployment, ranked.last_deployment, ranked.acknowledged_at,
    ranked.acknowledged_by, ranked.note, ranked.last_ten_minutes, ranked.last_hour, ranked.last_day,
    COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    ranked,
    LATERAL (
        SELECT
            sum(number) AS number, array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (ranked.task, ranked.exception, ranked.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
ORDER BY ranked.standing, ranked.last_ten_minutes DESC, ranked.last_at DESC

-- LAST_ERRORS (parts.history.causes)
SELECT
    id, errors -> -1 ->> 'exception', COALESCE(errors -> -1 ->> 'place', ''), errors -> -1 ->> 'message',
    args::text, kwargs::text
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND pg_column_size(args) + pg_column_size(kwargs) < 16000

-- ACKNOWLEDGE (parts.history.causes)
UPDATE skipqueue_failure_rollup AS cause
SET acknowledged_at = statement_timestamp(),
    acknowledged_by = %(by)s,
    note = %(note)s,
    acknowledged_number = (
        SELECT COALESCE(sum(number), 0)
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 60
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '10 minutes'
    ),
    came_back_at = NULL
WHERE cause.span = 0 AND cause.task = %(task)s AND cause.exception = %(exception)s AND cause.place = %(place)s
RETURNING true

-- UNACKNOWLEDGE (parts.history.causes)
UPDATE skipqueue_failure_rollup
SET acknowledged_at = NULL, acknowledged_by = '', note = '', acknowledged_number = NULL, came_back_at = NULL
WHERE
    span = 0
    AND task = %(task)s
    AND exception = %(exception)s
    AND place = %(place)s
    AND acknowledged_at IS NOT NULL
RETURNING true

-- NOTE_DEPLOYMENT (parts.history.deployments)
INSERT INTO skipqueue_deployment (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING

-- DEPLOYMENTS (parts.history.deployments)
SELECT name, date_part('epoch', first_at)
FROM skipqueue_deployment
WHERE first_at >= to_timestamp(%(since)s)
ORDER BY first_at DESC
LIMIT %(limit)s

-- PRUNE_DEPLOYMENTS (parts.history.deployments)
DELETE FROM skipqueue_deployment AS deployment
WHERE
    first_at < statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.deployment = deployment.name)

-- RECENT_TASKS (parts.history.rules)
SELECT
    task, queue_name, sum(completed + retried + failed + discarded)::bigint, sum(retried + failed)::bigint,
    sum(recovered)::bigint, statement_timestamp()
FROM (
    SELECT task, queue_name, completed, retried, failed, discarded, recovered
    FROM skipqueue_rollup
    WHERE span = 60 AND starts_at > statement_timestamp() - interval '10 minutes'
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task > ''
GROUP BY task, queue_name
HAVING sum(retried + failed + recovered) > 0
LIMIT 5000

-- RECENT_CAUSES (parts.history.rules)
SELECT
    recent.task, recent.exception, recent.place, recent.number, cause.number, cause.first_at, cause.last_job_id,
    cause.first_deployment
FROM
    (
        SELECT task, exception, place, sum(number)::bigint AS number
        FROM (
            SELECT task, exception, place, number
            FROM skipqueue_failure_rollup
            WHERE span = 60 AND starts_at > statement_timestamp() - interval '10 minutes'
            ORDER BY starts_at DESC
            LIMIT 20000
        ) AS failure
        WHERE task = ANY (%(tasks)s::text[])
        GROUP BY task, exception, place
        ORDER BY number DESC
        LIMIT 1000
    ) AS recent
    CROSS JOIN LATERAL (
        SELECT number, first_at, last_job_id, first_deployment
        FROM skipqueue_failure_rollup AS ever
        WHERE
            ever.span = 0
            AND (ever.task, ever.exception, ever.place) = (recent.task, recent.exception, recent.place)
            AND ever.starts_at = to_timestamp(0)
        LIMIT 1
    ) AS cause
ORDER BY recent.number DESC
LIMIT 1000

-- USUAL_SHARES (parts.history.rules)
SELECT task, percentile_cont(0.5) WITHIN GROUP (ORDER BY failed::float8 / attempts)
FROM (
    SELECT
        wanted.task, ago.days, sum(hour.failed) AS failed, sum(hour.attempts) AS attempts
    FROM
        unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
        CROSS JOIN generate_series(1, 7) AS ago (days)
        CROSS JOIN LATERAL (
            SELECT retried + failed AS failed, completed + retried + failed + discarded AS attempts
            FROM skipqueue_rollup
            WHERE
                span = 3600
                AND queue_name = wanted.queue_name
                AND task = wanted.task
                AND starts_at
                    = to_timestamp(floor(date_part('epoch', statement_timestamp()) / 3600) * 3600 - 86400 * ago.days)
            LIMIT 1
        ) AS hour
    GROUP BY wanted.task, ago.days
) AS day
WHERE attempts > 0
GROUP BY task
LIMIT 1000

-- SINCE_NEW (parts.history.rules)
SELECT wanted.task, sum(minute.attempts)::bigint, sum(minute.failed)::bigint
FROM
    unnest(%(tasks)s::text[], %(queue_names)s::text[], %(since)s::timestamptz[]) AS wanted (task, queue_name, since)
    CROSS JOIN LATERAL (
        SELECT retried + failed AS failed, completed + retried + failed + discarded AS attempts
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = wanted.queue_name
            AND task = wanted.task
            AND starts_at > GREATEST(wanted.since, statement_timestamp() - interval '10 minutes')
        LIMIT 10
    ) AS minute
GROUP BY wanted.task
LIMIT 1000

-- FAILING_SINCE (parts.history.rules)
WITH minute AS MATERIALIZED (
    SELECT
        wanted.task, counted.starts_at, sum(counted.failed) >= %(share)s * sum(counted.attempts) AS fails
    FROM
        unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
        CROSS JOIN LATERAL (
            SELECT starts_at, retried + failed AS failed, completed + retried + failed + discarded AS attempts
            FROM skipqueue_rollup
            WHERE
                span = 60
                AND queue_name = wanted.queue_name
                AND task = wanted.task
                AND starts_at > statement_timestamp() - interval '1 day'
            ORDER BY starts_at
            LIMIT 1500
        ) AS counted
    WHERE counted.attempts > 0
    GROUP BY wanted.task, counted.starts_at
)
SELECT task, min(starts_at)
FROM
    minute
    LEFT JOIN (
        SELECT task, max(starts_at) AS last_good_at FROM minute WHERE NOT fails GROUP BY task
    ) AS good USING (task)
WHERE fails AND starts_at > COALESCE(last_good_at, '-infinity')
GROUP BY task
LIMIT 1000

-- DEATHS_SINCE (parts.history.rules)
WITH minute AS MATERIALIZED (
    SELECT starts_at, deaths, recovered, starts_at - lag(starts_at) OVER (ORDER BY starts_at) AS since_last_death
    FROM (
        SELECT starts_at, deaths, recovered
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = ''
            AND task = ''
            AND starts_at > statement_timestamp() - interval '1 day'
        ORDER BY starts_at
        LIMIT 1500
    ) AS counted
    WHERE recovered > 0
),
series AS MATERIALIZED (
    SELECT max(starts_at) AS began_at
    FROM minute
    WHERE since_last_death IS NULL OR since_last_death > interval '10 minutes'
)
SELECT
    series.began_at,
    (
        SELECT min(first_at)
        FROM skipqueue_failure_rollup AS failure
        WHERE
            failure.span = 60
            AND failure.starts_at = series.began_at
            AND failure.exception = 'django_skipqueue.exceptions.WorkerDied'
    ),
    sum(minute.deaths)::bigint,
    sum(minute.recovered)::bigint
FROM series JOIN minute ON minute.starts_at >= series.began_at
GROUP BY series.began_at
HAVING max(minute.starts_at) > statement_timestamp() - interval '10 minutes'
LIMIT 1

-- DEATHS_OF_TASKS (parts.history.rules)
SELECT wanted.task, sum(minute.deaths)::bigint, sum(minute.recovered)::bigint, sum(minute.completed)::bigint
FROM
    unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
    CROSS JOIN LATERAL (
        SELECT deaths, recovered, completed
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = wanted.queue_name
            AND task = wanted.task
            AND starts_at >= %(since)s
        LIMIT 1500
    ) AS minute
GROUP BY wanted.task
LIMIT 1000

-- RECENT_QUEUES (parts.history.rules)
WITH recent AS MATERIALIZED (
    SELECT
        queue_name, task, starts_at, depth, oldest_seconds, completed + retried + snoozed + failed + discarded AS ended,
        ran_seconds, starts_at < statement_timestamp() - interval '8 minutes' AS is_before,
        starts_at > statement_timestamp() - interval '3 minutes' AS is_now
    FROM skipqueue_rollup
    WHERE span = 60 AND starts_at > statement_timestamp() - interval '11 minutes'
    ORDER BY starts_at DESC
    LIMIT 20000
)
SELECT
    queue_name,
    COALESCE(max(depth) FILTER (WHERE is_before), 0), COALESCE(max(oldest_seconds) FILTER (WHERE is_before), 0),
    COALESCE((array_agg(depth ORDER BY starts_at DESC) FILTER (WHERE is_now AND depth IS NOT NULL))[1], 0),
    COALESCE((array_agg(oldest_seconds ORDER BY starts_at DESC) FILTER (WHERE is_now AND depth IS NOT NULL))[1], 0),
    sum(ended)::bigint, COALESCE(sum(ran_seconds) / NULLIF(sum(ended), 0), 0)::float8, statement_timestamp()
FROM recent
WHERE
    task = ''
    AND queue_name > ''
    AND EXISTS (SELECT FROM recent AS sample WHERE sample.queue_name = '' AND is_before AND sample.depth IS NOT NULL)
GROUP BY queue_name
LIMIT 1000

-- USUAL_QUEUES (parts.history.rules)
SELECT
    queue_name, percentile_disc(0.5) WITHIN GROUP (ORDER BY depth), percentile_disc(0.5) WITHIN GROUP (ORDER BY oldest)
FROM (
    SELECT wanted.queue_name, ago.days, max(hour.depth) AS depth, max(hour.oldest_seconds) AS oldest
    FROM
        unnest(%(queue_names)s::text[]) AS wanted (queue_name)
        CROSS JOIN generate_series(1, 7) AS ago (days)
        CROSS JOIN generate_series(-1, 1) AS beside (hours)
        CROSS JOIN LATERAL (
            SELECT depth, oldest_seconds
            FROM skipqueue_rollup
            WHERE
                span = 3600
                AND queue_name = wanted.queue_name
                AND task = ''
                AND starts_at = to_timestamp(
                    floor(date_part('epoch', statement_timestamp()) / 3600) * 3600 - 86400 * ago.days
                    + 3600 * beside.hours
                )
            LIMIT 1
        ) AS hour
    WHERE hour.depth IS NOT NULL
    GROUP BY wanted.queue_name, ago.days
) AS day
GROUP BY queue_name
LIMIT 1000

-- USUAL_RUNS (parts.history.rules)
SELECT task, array_to_json(ran)::text
FROM skipqueue_rollup
WHERE span = 0 AND task = ANY (%(tasks)s::text[]) AND ran IS NOT NULL
ORDER BY queue_name, task
LIMIT 1000

-- DUE_RETRIES (parts.history.rules)
WITH due AS MATERIALIZED (
    SELECT queue_name, task, attempts, run_after
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp() + make_interval(secs => %(seconds)s)
    ORDER BY run_after
    LIMIT %(limit)s
)
SELECT
    queue_name, task, count(*),
    (
        SELECT CASE WHEN count(*) < %(limit)s THEN %(seconds)s::float8
            ELSE GREATEST(date_part('epoch', max(run_after) - statement_timestamp()), 1) END
        FROM due
    )
FROM due
WHERE attempts > 0
GROUP BY queue_name, task
ORDER BY 3 DESC
LIMIT 1000

-- ROLL_UP (parts.history.rollups)
INSERT INTO skipqueue_rollup AS rollup (
    span, queue_name, task, starts_at, completed, retried, snoozed, failed, discarded, recovered, deaths, lost, waited,
    ran, waited_seconds, ran_seconds, waited_longest, ran_longest, claims, claim_times, claim_seconds
)
SELECT
    span, queue_name, task, to_timestamp(starts_at), completed, retried, snoozed, failed, discarded, recovered, deaths,
    lost, waited, ran, waited_seconds, ran_seconds, waited_longest, ran_longest, claims, claim_times, claim_seconds
FROM json_to_recordset(%(rows)s::json) AS counted (
    span smallint, queue_name text, task text, starts_at bigint, completed bigint, retried bigint, snoozed bigint,
    failed bigint, discarded bigint, recovered bigint, deaths bigint, lost bigint, waited bigint[], ran bigint[],
    waited_seconds float8, ran_seconds float8, waited_longest float8, ran_longest float8, claims bigint,
    claim_times bigint[], claim_seconds float8
)
ORDER BY span, queue_name, task, starts_at
ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
SET changed_at = statement_timestamp(),
    completed = rollup.completed + EXCLUDED.completed,
    retried = rollup.retried + EXCLUDED.retried,
    snoozed = rollup.snoozed + EXCLUDED.snoozed,
    failed = rollup.failed + EXCLUDED.failed,
    discarded = rollup.discarded + EXCLUDED.discarded,
    recovered = rollup.recovered + EXCLUDED.recovered,
    deaths = rollup.deaths + EXCLUDED.deaths,
    lost = rollup.lost + EXCLUDED.lost,
    waited = ARRAY (
        SELECT COALESCE(old_count, 0) + COALESCE(added_count, 0)
        FROM unnest(rollup.waited, EXCLUDED.waited) WITH ORDINALITY AS bucket (old_count, added_count, place)
        ORDER BY place
    ),
    ran = ARRAY (
        SELECT COALESCE(old_count, 0) + COALESCE(added_count, 0)
        FROM unnest(rollup.ran, EXCLUDED.ran) WITH ORDINALITY AS bucket (old_count, added_count, place)
        ORDER BY place
    ),
    waited_seconds = rollup.waited_seconds + EXCLUDED.waited_seconds,
    ran_seconds = rollup.ran_seconds + EXCLUDED.ran_seconds,
    waited_longest = GREATEST(rollup.waited_longest, EXCLUDED.waited_longest),
    ran_longest = GREATEST(rollup.ran_longest, EXCLUDED.ran_longest),
    claims = rollup.claims + EXCLUDED.claims,
    claim_times = ARRAY (
        SELECT COALESCE(old_count, 0) + COALESCE(added_count, 0)
        FROM unnest(rollup.claim_times, EXCLUDED.claim_times) WITH ORDINALITY AS bucket (old_count, added_count, place)
        ORDER BY place
    ),
    claim_seconds = rollup.claim_seconds + EXCLUDED.claim_seconds

-- ROLL_UP_FAILURES (parts.history.rollups)
INSERT INTO skipqueue_failure_rollup AS rollup (
    span, task, exception, place, starts_at, number, first_at, last_at, last_line, last_job_id, first_deployment,
    last_deployment
)
SELECT
    span, task, exception, place, to_timestamp(starts_at), number, to_timestamp(first_at), to_timestamp(last_at),
    last_line, last_job_id, %(deployment)s, %(deployment)s
FROM json_to_recordset(%(rows)s::json) AS counted (
    span smallint, task text, exception text, place text, starts_at bigint, number bigint, first_at float8,
    last_at float8, last_line integer, last_job_id bigint
)
ORDER BY span, task, exception, place, starts_at
ON CONFLICT (span, task, exception, place, starts_at) DO UPDATE
SET number = rollup.number + EXCLUDED.number,
    first_at = LEAST(rollup.first_at, EXCLUDED.first_at),
    last_at = GREATEST(rollup.last_at, EXCLUDED.last_at),
    last_line = EXCLUDED.last_line,
    last_job_id = EXCLUDED.last_job_id,
    last_deployment = EXCLUDED.last_deployment,
    came_back_at = CASE
        WHEN
            rollup.acknowledged_at IS NOT NULL
            AND EXCLUDED.first_at > rollup.last_at + interval '10 minutes'
            AND EXISTS (
    SELECT
    FROM
        (VALUES (60, rollup.last_at + interval '1 hour'), (3600, EXCLUDED.first_at)) AS width (seconds, newest_start)
        JOIN skipqueue_rollup AS ended ON ended.span = width.seconds
    WHERE
        ended.queue_name = ANY (ARRAY (SELECT queue_name FROM skipqueue_rollup WHERE span = 0 AND task = rollup.task))
        AND ended.task = rollup.task
        AND ended.starts_at > rollup.last_at
        AND ended.starts_at <= LEAST(width.newest_start, EXCLUDED.first_at - make_interval(secs => width.seconds))
        AND ended.completed + ended.retried + ended.failed + ended.discarded > 0
)
        THEN EXCLUDED.first_at
        ELSE rollup.came_back_at
    END

-- START_COUNTING (parts.history.rollups)
INSERT INTO skipqueue_rollup_progress (id, counted_to, ready_to, ready_xid, seen_to, ready_at, changed_at)
SELECT 1, newest.id, newest.id, 0, newest.id, statement_timestamp(), '-infinity'
FROM (SELECT COALESCE(max(id), 0) AS id FROM skipqueue_job) AS newest
ON CONFLICT (id) DO NOTHING

-- COUNT_ENQUEUED (parts.history.rollups)
WITH progress AS MATERIALIZED (
    SELECT id, counted_to, ready_to, seen_to
    FROM skipqueue_rollup_progress
    WHERE
        changed_at <= statement_timestamp() - make_interval(secs => %(interval)s)
        AND (
            pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= ready_xid
            OR ready_at <= statement_timestamp() - make_interval(secs => %(patience)s)
        )
    FOR NO KEY UPDATE SKIP LOCKED
),
step AS MATERIALIZED (
    SELECT
        id,
        counted_to,
        COALESCE(
            (
                SELECT job.id
                FROM skipqueue_job AS job
                WHERE job.id > progress.counted_to AND job.id <= progress.ready_to
                ORDER BY job.id
                OFFSET %(limit)s - 1
                LIMIT 1
            ),
            ready_to
        ) AS end_at,
        ready_to,
        seen_to
    FROM progress
),
counted AS MATERIALIZED (
    SELECT job.queue_name, job.task, floor(date_part('epoch', job.enqueued_at) / 60) * 60 AS minute, count(*) AS number
    FROM step, LATERAL (
        SELECT queue_name, task, enqueued_at
        FROM skipqueue_job
        WHERE id > step.counted_to AND id <= step.end_at
    ) AS job
    GROUP BY 1, 2, 3
),
written AS (
    INSERT INTO skipqueue_rollup AS rollup (span, queue_name, task, starts_at, enqueued)
    SELECT
        span.seconds, level.queue_name, level.task,
        to_timestamp(COALESCE(floor(counted.minute / NULLIF(span.seconds, 0)) * span.seconds, 0)) AS starts_at,
        sum(counted.number)
    FROM
        counted,
        (VALUES (0), (60), (3600)) AS span (seconds),
        LATERAL (
            VALUES (counted.queue_name, counted.task), (counted.queue_name, ''), ('', '')
        ) AS level (queue_name, task)
    GROUP BY 1, 2, 3, 4
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
    SET changed_at = statement_timestamp(), enqueued = rollup.enqueued + EXCLUDED.enqueued
)
UPDATE skipqueue_rollup_progress AS progress
SET counted_to = step.end_at,
    ready_to = CASE WHEN step.end_at = step.ready_to THEN step.seen_to ELSE step.ready_to END,
    ready_xid = CASE
        WHEN step.end_at = step.ready_to THEN pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        ELSE progress.ready_xid
    END,
    ready_at = CASE WHEN step.end_at = step.ready_to THEN statement_timestamp() ELSE progress.ready_at END,
    seen_to = CASE
        WHEN step.end_at = step.ready_to THEN COALESCE((SELECT max(id) FROM skipqueue_job), step.seen_to)
        ELSE progress.seen_to
    END,
    changed_at = CASE WHEN step.end_at = step.ready_to THEN statement_timestamp() ELSE progress.changed_at END
FROM step
WHERE progress.id = step.id
RETURNING step.end_at < step.ready_to

-- DEPTHS_ARE_DUE (parts.history.rollups)
SELECT NOT EXISTS (
    SELECT FROM skipqueue_rollup
    WHERE
        span = 60
        AND queue_name = ''
        AND task = ''
        AND starts_at = to_timestamp(floor(date_part('epoch', statement_timestamp()) / 60) * 60)
        AND depth IS NOT NULL
)

-- ROLL_UP_DEPTHS (parts.history.rollups)
INSERT INTO skipqueue_rollup AS rollup (
    span, queue_name, task, starts_at, depth, oldest_seconds, claim_pages, claim_rows
)
SELECT
    span.seconds, queue_name, '',
    to_timestamp(floor(date_part('epoch', statement_timestamp()) / span.seconds) * span.seconds), depth, oldest_seconds,
    claim_pages, claim_rows
FROM
    json_to_recordset(%(rows)s::json) AS sample (
        queue_name text, depth bigint, oldest_seconds float8, claim_pages bigint, claim_rows bigint
    ),
    (VALUES (60), (3600)) AS span (seconds)
ORDER BY 1, 2
ON CONFLICT (span, queue_name, task, starts_at) DO UPDATE
SET depth = GREATEST(rollup.depth, EXCLUDED.depth),
    oldest_seconds = GREATEST(rollup.oldest_seconds, EXCLUDED.oldest_seconds),
    claim_pages = GREATEST(rollup.claim_pages, EXCLUDED.claim_pages),
    claim_rows = GREATEST(rollup.claim_rows, EXCLUDED.claim_rows)

-- PRUNE_ROLLUPS (parts.history.rollups)
WITH old AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_rollup
    WHERE
        span = %(span)s
        AND starts_at < statement_timestamp() - make_interval(secs => %(age)s)
        AND changed_at < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY starts_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_rollup AS rollup WHERE rollup.ctid = ANY (ARRAY (SELECT place FROM old)) RETURNING 1
)
SELECT count(*) FROM deleted

-- PRUNE_FAILURES (parts.history.rollups)
WITH old AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_failure_rollup
    WHERE
        span = %(span)s
        AND starts_at < statement_timestamp() - make_interval(secs => %(age)s)
        AND last_at < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY starts_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_failure_rollup AS rollup WHERE rollup.ctid = ANY (ARRAY (SELECT place FROM old)) RETURNING 1
)
SELECT count(*) FROM deleted

-- ENQUEUE_MANY_UNIQUE (parts.unique.enqueue)
WITH inserted AS (
INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held, priority, max_attempts, timeout, retention, metadata, unique_seconds, batch_id, unique_key, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' WHEN %(held)s::boolean THEN 'blocked' WHEN call.limit_key::text IS NOT NULL THEN 'blocked' WHEN call.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    CASE WHEN due.run_after > statement_timestamp() THEN NULL WHEN %(held)s::boolean THEN 'held' WHEN call.limit_key::text IS NOT NULL THEN 'limit' WHEN call.rate_key::text IS NOT NULL THEN 'rate' END,
    due.run_after, %(held)s::boolean, %(priority)s::smallint, %(max_attempts)s::smallint, %(timeout)s::float8, %(retention)s::jsonb, %(metadata)s::jsonb, %(unique_seconds)s::float8, %(batch_id)s::bigint, call.unique_key, call.limit_key, CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END, CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END, call.rate_key, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]), unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) AS run_after) AS due
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0))) DO NOTHING
RETURNING id, unique_key, status, run_after
)
SELECT
    array_agg(id ORDER BY id),
    CASE WHEN count(*) < %(number)s THEN array_agg(unique_key ORDER BY id) END,
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted

-- REPLACE_WAITING (parts.unique.enqueue)
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
        AND finished_at IS NULL
        AND status <> 'running'
    ORDER BY unique_key
    FOR NO KEY UPDATE
)
UPDATE skipqueue_job AS job
SET (args, kwargs, run_after) = (call.args::jsonb, call.kwargs::jsonb, due.run_after),
    status = CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN call.limit_key::text IS NOT NULL THEN 'blocked' WHEN call.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN due.run_after > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN call.limit_key::text IS NOT NULL THEN 'limit' WHEN call.rate_key::text IS NOT NULL THEN 'rate' END,
    limit_key = call.limit_key,
    limit_kind = CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
    capacity = CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
    rate_key = call.rate_key,
    rate_interval = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
    rate_burst = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]), unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
WHERE job.id = ANY (ARRAY (SELECT id FROM waiting)) AND job.unique_key = call.unique_key
RETURNING
    job.unique_key, job.id, job.status, job.gate, job.run_after, job.enqueued_at,
    extract(epoch FROM job.run_after - statement_timestamp())::float8

-- REPLACE_UNLOCKED (parts.unique.enqueue)
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
        AND finished_at IS NULL
        AND status <> 'running'
    ORDER BY unique_key
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET (args, kwargs, run_after) = (call.args::jsonb, call.kwargs::jsonb, due.run_after),
    status = CASE WHEN due.run_after > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN call.limit_key::text IS NOT NULL THEN 'blocked' WHEN call.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN due.run_after > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN call.limit_key::text IS NOT NULL THEN 'limit' WHEN call.rate_key::text IS NOT NULL THEN 'rate' END,
    limit_key = call.limit_key,
    limit_kind = CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
    capacity = CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
    rate_key = call.rate_key,
    rate_interval = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
    rate_burst = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]), unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
WHERE job.id = ANY (ARRAY (SELECT id FROM waiting)) AND job.unique_key = call.unique_key
RETURNING
    job.unique_key, job.id, job.status, job.gate, job.run_after, job.enqueued_at,
    extract(epoch FROM job.run_after - statement_timestamp())::float8

-- UNIQUE_KEY_HOLDERS (parts.unique.enqueue)
SELECT
    unique_key, id, finished_at IS NOT NULL AS is_finished,
    finished_at IS NULL AND status <> 'running' AS waits,
    finished_at IS NULL AND lease = 0 AS is_unclaimed
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))

-- LOCK_WAITING_HOLDERS (parts.unique.enqueue)
SELECT unique_key, id, queue_name, status
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
    AND finished_at IS NULL
    AND lease = 0
ORDER BY unique_key
FOR SHARE

-- LOCK_UNLOCKED_HOLDERS (parts.unique.enqueue)
SELECT unique_key, id, queue_name, status
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
    AND finished_at IS NULL
    AND lease = 0
ORDER BY unique_key
FOR SHARE SKIP LOCKED

-- FREE_UNIQUE_KEYS (parts.unique.enqueue)
WITH expired AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
        AND finished_at IS NOT NULL
        AND enqueued_at + make_interval(secs => unique_seconds) <= statement_timestamp()
    ORDER BY unique_key
    FOR NO KEY UPDATE
)
UPDATE skipqueue_job AS job
SET unique_seconds = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM expired))
RETURNING job.unique_key

-- UNIQUE_KEYS_OF (parts.unique.enqueue)
SELECT DISTINCT unique_key
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('failed', 'discarded') AND unique_key IS NOT NULL

-- SETTLE_CARRIED (contrib.celery.rows)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    gate = CASE WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END END,
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
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
            )
        )
    END,
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id, outcome.lease, job.batch_id

-- SETTLE_CARRIED_SNOOZES (contrib.celery.rows)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN 'scheduled' WHEN job.held::boolean THEN 'blocked' WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    gate = CASE WHEN outcome.status = 'scheduled' THEN CASE WHEN statement_timestamp() + make_interval(secs => outcome.delay) > statement_timestamp() THEN NULL WHEN job.held::boolean THEN 'held' WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END END,
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
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
            )
        )
    END,
    operations = CASE
        WHEN outcome.refund IS NULL OR outcome.refund = 0 OR outcome.is_unknown THEN job.operations
        ELSE COALESCE(
            CASE
                WHEN job.operations -> -1 ->> 'verb' = 'snooze' THEN job.operations - -1
                WHEN job.operations -> 49 IS NOT NULL THEN job.operations - 0
                ELSE job.operations
            END,
            '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'snooze', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts,
            'since', statement_timestamp() - outcome.started * interval '1 microsecond',
            'times', 1 + CASE
                WHEN
                    job.operations -> -1 ->> 'verb' = 'snooze'
                    AND jsonb_typeof(job.operations -> -1 -> 'times') = 'number'
                THEN (job.operations -> -1 ->> 'times')::numeric
                ELSE 0
            END
        )
    END,
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id, outcome.lease, job.batch_id

-- APPEND_CANCELLED_ERRORS_CARRIED (contrib.celery.rows)
WITH cancelled AS MATERIALIZED (
    SELECT job.id, attempt.error
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(errors)s::text[]::jsonb[]))
            AS attempt (id, lease, error)
        JOIN skipqueue_job AS job ON job.id = attempt.id AND job.lease = attempt.lease + 1
    WHERE job.status = 'discarded' AND (job.errors -> -1 @> attempt.error) IS NOT TRUE
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
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id

-- RELEASE_CARRIED (contrib.celery.rows)
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN %(later)s::boolean THEN 'scheduled'
        WHEN (CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END) IS NOT NULL THEN 'blocked'
        ELSE 'queued'
    END,
    run_after = CASE
        WHEN %(later)s::boolean THEN statement_timestamp() + random() * interval '10 seconds'
        ELSE job.run_after
    END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    gate = CASE WHEN NOT %(later)s::boolean THEN CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN 'limit' END END,
    started_at = NULL,
    operations = CASE
        WHEN %(interrupted)s::boolean
        THEN COALESCE(
            CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'release', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts, 'since', job.started_at
        )
        ELSE job.operations
    END
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id, job.queue_name, job.gate, CASE job.gate WHEN 'limit' THEN job.limit_key WHEN 'rate' THEN job.rate_key END

-- NOTE_CARRIED_ATTEMPTS (contrib.celery.rows)
WITH held AS MATERIALIZED (
    SELECT job.id, noted.started, noted.notes -> 'progress' AS progress, noted.notes -> 'log' AS log
    FROM
        unnest(
            (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
            (SELECT %(notes)s::text[]::jsonb[])
        ) AS noted (id, lease, started, notes)
        JOIN skipqueue_job AS job ON job.id = noted.id AND job.lease = noted.lease
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET (progress, logs) = (
        SELECT
            CASE
                WHEN held.progress IS NULL THEN job.progress
                ELSE held.progress || jsonb_build_object('at', statement_timestamp())
            END,
            CASE
                WHEN held.log IS NULL THEN job.logs
                ELSE (
                    CASE
                        WHEN job.logs -> -1 -> 'lease' = held.log -> 'lease' THEN job.logs - -1
                        WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                        ELSE COALESCE(job.logs, '[]')
                    END
                ) || (
                    held.log || jsonb_build_object(
                        'started', statement_timestamp() - held.started * interval '1 microsecond'
                    )
                )
            END
        FROM held
        WHERE held.id = job.id
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM held))
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id

-- NOTE_BEGUN (contrib.celery.rows)
UPDATE skipqueue_job AS job
SET started_at = statement_timestamp()
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS begun (id, lease)
WHERE job.id = begun.id AND job.lease = begun.lease
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
RETURNING job.id

-- RECOVER_RETURNED (contrib.celery.rows)
WITH lost AS MATERIALIZED (
    SELECT job.id, job.locked_by, job.locked_at
    FROM skipqueue_job AS job
    WHERE
        job.status = 'running'
        AND (job.id, job.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]))
        AND job.started_at > job.locked_at
    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN (SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))
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
                CASE WHEN verdict.status = 'blocked' THEN CASE WHEN job.rate_key IS NOT NULL THEN 'rate' WHEN job.limit_kind = 'concurrency' THEN 'limit' END END,
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
                (SELECT COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by)) AS died (workers),
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
                            WHEN (CASE WHEN job.rate_key IS NOT NULL THEN 'rate' WHEN job.limit_kind = 'concurrency' THEN 'limit' END) IS NOT NULL THEN 'blocked'
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

-- HEARTBEAT (contrib.celery.rows)
WITH deleted_rows AS (
    DELETE FROM skipqueue_celery_worker AS celery_row
    WHERE
        celery_row.worker_id <> ALL (ARRAY[%(carrier_id)s, %(relay_id)s]::text[])
        AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = celery_row.worker_id)
)
INSERT INTO skipqueue_celery_worker AS stored (worker_id, relay_of, reached_at, refused)
SELECT new_row.worker_id, new_row.relay_of, new_row.reached_at, new_row.refused
FROM (
    VALUES
        (%(carrier_id)s::text, '', CASE WHEN %(is_reached)s THEN statement_timestamp() END, %(refused)s::bigint),
        (%(relay_id)s::text, %(carrier)s::text, NULL, 0)
) AS new_row (worker_id, relay_of, reached_at, refused)
WHERE new_row.worker_id IS NOT NULL
ON CONFLICT (worker_id) DO UPDATE SET
    reached_at = COALESCE(excluded.reached_at, stored.reached_at),
    refused = stored.refused + excluded.refused
WHERE stored.relay_of = ''

-- HAND_OVER (contrib.celery.rows)
UPDATE skipqueue_job AS job
SET locked_by = %(carrier_id)s
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS confirmed (id, lease)
WHERE job.id = confirmed.id AND job.lease = confirmed.lease
RETURNING job.id, confirmed.lease

-- CARRIED_BY_TASK (contrib.celery.rows)
SELECT task, timeout, count(*), date_part('epoch', statement_timestamp() - max(locked_at))
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s
GROUP BY task, timeout

-- CARRIED_BEFORE (contrib.celery.rows)
SELECT count(*)
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s AND locked_at <= %(claimed_until)s

-- CLOCK_NOW (contrib.celery.rows)
SELECT statement_timestamp()

-- CANCELLED_JOBS (contrib.celery.rows)
SELECT id, lease - 1
FROM skipqueue_job
WHERE
    status = 'discarded'
    AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by = %(carrier_id)s
ORDER BY finished_at DESC
LIMIT %(limit)s

-- CARRIER_SINCE (contrib.celery.rows)
SELECT started_at FROM skipqueue_worker WHERE id = %(carrier_id)s

-- CARRIED_COUNT (contrib.celery.window)
WITH relay AS MATERIALIZED (
    SELECT
        worker.id,
        worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s) AS is_alive
    FROM skipqueue_celery_worker AS celery_row JOIN skipqueue_worker AS worker ON worker.id = celery_row.worker_id
    WHERE celery_row.relay_of = %(carrier)s
)
SELECT
    count(*) FILTER (WHERE locked_by = %(carrier_id)s),
    count(*) FILTER (WHERE locked_by <> %(carrier_id)s),
    (SELECT count(*) FROM relay WHERE is_alive)
FROM skipqueue_job
WHERE status = 'running' AND (locked_by = %(carrier_id)s OR locked_by IN (SELECT id FROM relay))

-- ADMIT_BY_KEY (parts.limits.admit)
WITH paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
),
chosen AS MATERIALIZED (
    SELECT job.place, job.queue_name, job.later_key
    FROM
        paused,
        unnest(
            (SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[]),
            (SELECT NULLIF(current_setting('skipqueue.ended_jobs', true), '')::integer[]),
            (SELECT NULLIF(current_setting('skipqueue.free_keys', true), '')::boolean[])
        ) AS key (name, ended_count, next_may_start),
        LATERAL (
            SELECT
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank,
                id, capacity, limit_kind
            FROM skipqueue_job
            WHERE
                gate = 'limit'
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
            ORDER BY 1, id
            LIMIT 1
        ) AS head,
        LATERAL (
            SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
            FROM (
                SELECT CASE
                    WHEN starts_with(key.name, 'queue:')
                    THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
                END AS concurrency
            ) AS changed
        ) AS limited,
        LATERAL (
            SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
            FROM (
                SELECT status
                FROM skipqueue_job
                WHERE
                    limit_key = key.name
                    AND limited.permits IS NOT NULL
                    AND key.next_may_start IS NOT TRUE
                    AND (
                        status IN ('queued', 'running')
                        OR gate = 'rate'
                        OR (
                            (started_at IS NOT NULL OR attempts > 0)
                            AND limit_kind IN ('sequence', 'halting')
                            AND (status = 'scheduled' OR gate = 'held')
                        )
                        OR (limit_kind = 'halting' AND status = 'failed')
                    )
                LIMIT CASE WHEN head.limit_kind <> 'fair' THEN limited.permits END
            ) AS holder
        ) AS held,
        LATERAL (
            SELECT ctid AS place, id, queue_name, rate_key AS later_key
            FROM skipqueue_job
            WHERE
                gate = 'limit'
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
                AND (
                    (CASE
                        WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                        WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                        ELSE 0
                    END),
                    id
                ) >= (head.rank, head.id)
            ORDER BY
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END), id
            LIMIT LEAST(1000, GREATEST(0, CASE
                WHEN head.limit_kind = 'fair'
                THEN GREATEST(head.capacity, held.running + 2 * key.ended_count) - (held.number - held.running)
                ELSE COALESCE(limited.permits - held.number, 1000)
            END))
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE head.limit_kind IN ('concurrency', 'fair') OR job.id = head.id
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = CASE WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
        gate = CASE WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.status, rate_key AS later_key
)
SELECT
    queue_name, count(*) FILTER (WHERE status = 'queued'), array_agg(later_key) FILTER (WHERE status = 'blocked')
FROM admitted
GROUP BY queue_name

-- CHOOSE_BY_KEY (parts.limits.admit)
WITH paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
),
chosen AS MATERIALIZED (
    SELECT job.place, job.queue_name, job.later_key
    FROM
        paused,
        unnest(
            (SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[]),
            (SELECT NULLIF(current_setting('skipqueue.ended_jobs', true), '')::integer[]),
            (SELECT NULLIF(current_setting('skipqueue.free_keys', true), '')::boolean[])
        ) AS key (name, ended_count, next_may_start),
        LATERAL (
            SELECT
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank,
                id, capacity, limit_kind
            FROM skipqueue_job
            WHERE
                gate = 'limit'
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
            ORDER BY 1, id
            LIMIT 1
        ) AS head,
        LATERAL (
            SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
            FROM (
                SELECT CASE
                    WHEN starts_with(key.name, 'queue:')
                    THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
                END AS concurrency
            ) AS changed
        ) AS limited,
        LATERAL (
            SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
            FROM (
                SELECT status
                FROM skipqueue_job
                WHERE
                    limit_key = key.name
                    AND limited.permits IS NOT NULL
                    AND key.next_may_start IS NOT TRUE
                    AND (
                        status IN ('queued', 'running')
                        OR gate = 'rate'
                        OR (
                            (started_at IS NOT NULL OR attempts > 0)
                            AND limit_kind IN ('sequence', 'halting')
                            AND (status = 'scheduled' OR gate = 'held')
                        )
                        OR (limit_kind = 'halting' AND status = 'failed')
                    )
                LIMIT CASE WHEN head.limit_kind <> 'fair' THEN limited.permits END
            ) AS holder
        ) AS held,
        LATERAL (
            SELECT ctid AS place, id, queue_name, rate_key AS later_key
            FROM skipqueue_job
            WHERE
                gate = 'limit'
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
                AND (
                    (CASE
                        WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                        WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                        ELSE 0
                    END),
                    id
                ) >= (head.rank, head.id)
            ORDER BY
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END), id
            LIMIT LEAST(1000, GREATEST(0, CASE
                WHEN head.limit_kind = 'fair'
                THEN GREATEST(head.capacity, held.running + 2 * key.ended_count) - (held.number - held.running)
                ELSE COALESCE(limited.permits - held.number, 1000)
            END))
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE head.limit_kind IN ('concurrency', 'fair') OR job.id = head.id
),
later AS (
    UPDATE skipqueue_job AS job
    SET gate = CASE WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen WHERE later_key IS NOT NULL))
)
SELECT
    queue_name,
    count(*) FILTER (WHERE later_key IS NULL),
    array_agg(later_key) FILTER (WHERE later_key IS NOT NULL),
    set_config(
        'skipqueue.chosen_jobs',
        COALESCE((SELECT array_agg(place) FROM chosen WHERE later_key IS NULL), '{}')::text,
        true
    )
FROM chosen
GROUP BY queue_name

-- BLOCKED_KEYS (parts.limits.admit)
WITH RECURSIVE walk AS (
    (
        SELECT limit_key AS key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > %(after)s::text
        ORDER BY limit_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > walk.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s),
paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
)
SELECT
    waiting_key.key,
    limited.permits IS NULL OR limited.permits > (
        SELECT CASE
            WHEN head.limit_kind = 'fair' THEN
                count(*) FILTER (WHERE status = 'queued')
                - GREATEST(count(*) FILTER (WHERE status = 'running') - head.capacity, 0)
            ELSE count(*)
        END
        FROM skipqueue_job
        WHERE
            limit_key = waiting_key.key
            AND limited.permits IS NOT NULL
            AND (
                status IN ('queued', 'running')
                OR gate = 'rate'
                OR (
                    (started_at IS NOT NULL OR attempts > 0)
                    AND limit_kind IN ('sequence', 'halting')
                    AND (status = 'scheduled' OR gate = 'held')
                )
                OR (limit_kind = 'halting' AND status = 'failed')
            )
    ) AS is_free
FROM
    waiting_key,
    paused,
    LATERAL (
        SELECT capacity, limit_kind
        FROM skipqueue_job
        WHERE
            gate = 'limit'
            AND limit_key = waiting_key.key
            AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
        ORDER BY
            (CASE
                WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                ELSE 0
            END), id
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
        FROM (
            SELECT CASE
                WHEN starts_with(waiting_key.key, 'queue:')
                THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(waiting_key.key, 7))
            END AS concurrency
        ) AS changed
    ) AS limited
ORDER BY waiting_key.key

-- ADMIT_WITHOUT_WAITING (parts.limits.admit)
SELECT set_config('synchronous_commit', 'off', true)

-- LOCK_KEY (parts.limits.admit)
SELECT set_config(
    'skipqueue.locked_key',
    CASE
        WHEN current_setting('transaction_isolation') <> 'read committed' THEN ''
        WHEN pg_try_advisory_xact_lock(1397442896, hashtext(%(key)s::text) & 1023) THEN %(key)s::text
        ELSE ''
    END,
    true
)

-- ADMIT_LONE (parts.limits.admit)
WITH chosen AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_job AS job
    WHERE
        id = %(id)s
        AND gate = 'limit'
        AND (limit_key = current_setting('skipqueue.locked_key', true)) IS TRUE
        AND (
            SELECT other.id
            FROM skipqueue_job AS other
            WHERE
                gate = 'limit'
                AND limit_key = %(key)s::text
                AND other.id <> %(id)s
            LIMIT 1
        ) IS NULL
        AND (
            SELECT CASE
                WHEN limited.permits IS NULL THEN true
                WHEN job.limit_kind = 'fair' THEN held.number - held.running < GREATEST(job.capacity, held.running)
                ELSE held.number < limited.permits
            END
            FROM
                LATERAL (
                    SELECT CASE WHEN concurrency IS NULL THEN job.capacity ELSE NULLIF(concurrency, 0) END AS permits
                    FROM (
                        SELECT CASE
                            WHEN starts_with(%(key)s, 'queue:')
                            THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(%(key)s, 7))
                        END AS concurrency
                    ) AS changed
                ) AS limited,
                LATERAL (
                    SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
                    FROM (
                        SELECT status
                        FROM skipqueue_job
                        WHERE
                            limit_key = %(key)s::text
                            AND limited.permits IS NOT NULL
                            AND (
                                status IN ('queued', 'running')
                                OR gate = 'rate'
                                OR (
                                    (started_at IS NOT NULL OR attempts > 0)
                                    AND limit_kind IN ('sequence', 'halting')
                                    AND (status = 'scheduled' OR gate = 'held')
                                )
                                OR (limit_kind = 'halting' AND status = 'failed')
                            )
                        LIMIT CASE WHEN job.limit_kind <> 'fair' THEN limited.permits END
                    ) AS holder
                ) AS held
        )
    LIMIT 1
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
    run_after = CASE
        WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
        ELSE job.run_after
    END
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.queue_name, rate_key

-- ENQUEUE_AND_ADMIT (parts.limits.admit)
BEGIN;

INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, gate, run_after, held, priority, max_attempts, timeout, retention, metadata, unique_seconds, batch_id, unique_key, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN 'scheduled' WHEN %(held)s::boolean THEN 'blocked' WHEN %(limit_key)s::text IS NOT NULL THEN 'blocked' WHEN %(rate_key)s::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    CASE WHEN COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)) > statement_timestamp() THEN NULL WHEN %(held)s::boolean THEN 'held' WHEN %(limit_key)s::text IS NOT NULL THEN 'limit' WHEN %(rate_key)s::text IS NOT NULL THEN 'rate' END,
    COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    %(held)s, %(priority)s::smallint, %(max_attempts)s::smallint, %(timeout)s::float8, %(retention)s::jsonb, %(metadata)s::jsonb, %(unique_seconds)s::float8, %(batch_id)s::bigint, %(unique_key)s, %(limit_key)s, %(limit_kind)s, %(capacity)s, %(rate_key)s, %(rate_interval)s, %(rate_burst)s
)

RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
SELECT set_config('synchronous_commit', 'off', true);

SELECT set_config(
    'skipqueue.locked_key',
    CASE
        WHEN current_setting('transaction_isolation') <> 'read committed' THEN ''
        WHEN pg_try_advisory_xact_lock(1397442896, hashtext(%(limit_key)s::text) & 1023) THEN %(limit_key)s::text
        ELSE ''
    END,
    true
)
;

WITH chosen AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_job AS job
    WHERE
        id = split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint
        AND gate = 'limit'
        AND (limit_key = current_setting('skipqueue.locked_key', true)) IS TRUE
        AND (
            SELECT other.id
            FROM skipqueue_job AS other
            WHERE
                gate = 'limit'
                AND limit_key = %(limit_key)s::text
                AND other.id <> split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint
            LIMIT 1
        ) IS NULL
        AND (
            SELECT CASE
                WHEN limited.permits IS NULL THEN true
                WHEN job.limit_kind = 'fair' THEN held.number - held.running < GREATEST(job.capacity, held.running)
                ELSE held.number < limited.permits
            END
            FROM
                LATERAL (
                    SELECT CASE WHEN concurrency IS NULL THEN job.capacity ELSE NULLIF(concurrency, 0) END AS permits
                    FROM (
                        SELECT CASE
                            WHEN starts_with(%(limit_key)s, 'queue:')
                            THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(%(limit_key)s, 7))
                        END AS concurrency
                    ) AS changed
                ) AS limited,
                LATERAL (
                    SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
                    FROM (
                        SELECT status
                        FROM skipqueue_job
                        WHERE
                            limit_key = %(limit_key)s::text
                            AND limited.permits IS NOT NULL
                            AND (
                                status IN ('queued', 'running')
                                OR gate = 'rate'
                                OR (
                                    (started_at IS NOT NULL OR attempts > 0)
                                    AND limit_kind IN ('sequence', 'halting')
                                    AND (status = 'scheduled' OR gate = 'held')
                                )
                                OR (limit_kind = 'halting' AND status = 'failed')
                            )
                        LIMIT CASE WHEN job.limit_kind <> 'fair' THEN limited.permits END
                    ) AS holder
                ) AS held
        )
    LIMIT 1
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    gate = CASE WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
    run_after = CASE
        WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
        ELSE job.run_after
    END
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING job.queue_name, rate_key, pg_notify('skipqueue', queue_name)

-- CLAIM_AHEAD (parts.limits.claim)
WITH held AS MATERIALIZED (
    SELECT job.limit_key AS key, count(*) AS number, min(job.capacity) AS capacity
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS known (id, lease)
        JOIN skipqueue_job AS job ON job.id = known.id
    WHERE
        job.limit_kind = 'concurrency'
        AND CASE
            WHEN job.lease = known.lease THEN job.status = 'running'
            ELSE job.lease = known.lease + 1 AND job.xmin = pg_current_xact_id_if_assigned()::xid
        END
    GROUP BY job.limit_key
    HAVING min(job.capacity) = max(job.capacity)
),
wish AS MATERIALIZED (
    SELECT wish.key, wish.task, wish.queue_name, wish.most, held.capacity
    FROM
        unnest(
            %(keys)s::text[], %(tasks)s::text[], %(queue_names)s::text[], %(permits)s::integer[], %(most)s::integer[]
        ) AS wish (key, task, queue_name, permits, most)
        JOIN held ON held.key = wish.key AND held.number >= wish.permits
    WHERE
        (
            SELECT queue.name
            FROM skipqueue_queue AS queue
            WHERE
                queue.name = wish.queue_name
                AND (
                    queue.concurrency IS NOT NULL
                    OR (
                        queue.paused_at IS NOT NULL
                        AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
                    )
                )
        ) IS NULL
),
chosen AS MATERIALIZED (
    SELECT next.place
    FROM
        wish,
        LATERAL (
            SELECT
                job.place,
                bool_or(job.is_other) OVER line AS is_behind_other,
                sum(job.size) OVER line AS size
            FROM (
                SELECT
                    (CASE
                        WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                        WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                        ELSE 0
                    END) AS rank,
                    id,
                    ctid AS place,
                    pg_column_size(args) + pg_column_size(kwargs) AS size,
                    (
                        task <> wish.task
                        OR queue_name <> wish.queue_name
                        OR capacity IS DISTINCT FROM wish.capacity
                        OR limit_kind <> 'concurrency'
                        OR rate_key IS NOT NULL
                        OR jsonb_array_length(deaths) >= 2
                    ) AS is_other
                FROM skipqueue_job
                WHERE gate = 'limit' AND limit_key = wish.key
                ORDER BY 1, id
                LIMIT wish.most
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS job
            WINDOW line AS (ORDER BY job.rank, job.id)
        ) AS next
    WHERE next.is_behind_other IS NOT TRUE AND next.size < 1000000
)
UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(),
    gate = 'ahead'
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text,
    job.kwargs::text,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN job.limit_key END AS permit_key

-- CLAIM_OR_ADMIT (parts.limits.claim)
WITH queue AS MATERIALIZED (
    SELECT name, rank, run_after, id, queue_number
    FROM
        unnest(%(queue_names)s::text[], %(ranks)s::smallint[], %(run_afters)s::float8[], %(ids)s::bigint[])
            WITH ORDINALITY AS queue (name, rank, run_after, id, queue_number)
    WHERE
        (
            SELECT paused.name
            FROM skipqueue_queue AS paused
            WHERE
                paused.name = queue.name
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        ) IS NULL
),
admitted AS MATERIALIZED (
    SELECT
        queue.queue_number,
        -job.priority AS rank,
        CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END AS run_after,
        job.id,
        job.ctid AS place,
        pg_column_size(job.args) + pg_column_size(job.kwargs) AS size
    FROM skipqueue_job AS job LEFT JOIN queue ON queue.name = job.queue_name
    WHERE job.ctid = ANY ((SELECT NULLIF(current_setting('skipqueue.chosen_jobs', true), '')::tid[])::tid[])
),
ahead AS MATERIALIZED (
    SELECT queue.queue_number, job.rank, job.run_after, job.id
    FROM
        queue,
        LATERAL (
            SELECT -priority AS rank, run_after, id
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
        ) AS job
    LIMIT (SELECT CASE WHEN count(queue_number) > 0 THEN %(limit)s ELSE 0 END FROM admitted)
),
share AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE is_admitted) AS number
    FROM (
        SELECT is_admitted
        FROM (
            SELECT queue_number, rank, run_after, id, false AS is_admitted FROM ahead
            UNION ALL
            SELECT queue_number, rank, run_after, id, true FROM admitted WHERE queue_number IS NOT NULL
        ) AS job
        ORDER BY queue_number, rank, run_after, id
        LIMIT %(limit)s
    ) AS first
),
locked_queued AS MATERIALIZED (
    SELECT queue.queue_number, job.rank, job.run_after, job.id, job.place, job.size
    FROM
        queue,
        LATERAL (
            SELECT
                -priority AS rank, run_after, id,
                ctid AS place, pg_column_size(args) + pg_column_size(kwargs) AS size
            FROM skipqueue_job
            WHERE
                status = 'queued'
                AND queue_name = queue.name
                AND (-priority, run_after, id) > (queue.rank, to_timestamp(queue.run_after), queue.id)
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    LIMIT %(limit)s - (SELECT number FROM share)
),
first_admitted AS (
    SELECT queue_number, rank, run_after, id, place, size
    FROM admitted
    WHERE queue_number IS NOT NULL
    ORDER BY queue_number, rank, run_after, id
    LIMIT (SELECT number FROM share)
),
chosen AS MATERIALIZED (
    SELECT place
    FROM (
        SELECT place, sum(size) OVER line - size AS size_before
        FROM (SELECT * FROM locked_queued UNION ALL SELECT * FROM first_admitted) AS job
        WINDOW line AS (ORDER BY queue_number, rank, run_after, id ROWS UNBOUNDED PRECEDING)
    ) AS job
    WHERE size_before < 4000000
),
not_claimed AS MATERIALIZED (SELECT place FROM admitted EXCEPT SELECT place FROM chosen),
queued AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued',
        gate = NULL,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM not_claimed))
)
UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(),
    gate = NULL,
    run_after = CASE
        WHEN job.gate = 'limit' AND job.limit_kind = 'fair'
        THEN GREATEST(job.run_after, statement_timestamp())
        ELSE job.run_after
    END
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text,
    job.kwargs::text,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.rate_key IS NOT NULL THEN NULL WHEN job.limit_kind = 'concurrency' THEN job.limit_key END AS permit_key

-- HALTED_KEYS (parts.limits.states)
SELECT failed.limit_key, failed.id, date_part('epoch', statement_timestamp() - failed.finished_at)
FROM (
    SELECT limit_key, id, finished_at
    FROM skipqueue_job
    WHERE status = 'failed' AND limit_kind = 'halting'
    ORDER BY finished_at, id
    LIMIT %(limit)s
) AS failed
WHERE EXISTS (
    SELECT
    FROM skipqueue_job
    WHERE gate = 'limit' AND limit_key = failed.limit_key
)
ORDER BY failed.finished_at, failed.id

-- WAITING_KEYS (parts.limits.states)
WITH RECURSIVE walk AS (
    (
        SELECT limit_key AS key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > %(after)s::text
        ORDER BY limit_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > walk.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT key FROM waiting_key

-- FIRST_BLOCKED_KEYS (parts.limits.states)
SELECT limit_key
FROM (
    SELECT id, limit_key, gate
    FROM skipqueue_job
    WHERE status = 'blocked'
    ORDER BY id
    LIMIT %(limit)s
) AS job
WHERE gate = 'limit'
GROUP BY limit_key
ORDER BY min(id)
LIMIT %(most)s

-- KEYS_NOW (parts.limits.states)
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text, head.limit_kind, limited.permits,
    held.number, waiting.number, date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place),
    LATERAL (
        SELECT id, task, args, kwargs, limit_kind, capacity
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key = key.name
        ORDER BY
            (CASE
                WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                ELSE 0
            END), id
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
        FROM (
            SELECT CASE
                WHEN starts_with(key.name, 'queue:')
                THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
            END AS concurrency
        ) AS changed
    ) AS limited,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND gate IS DISTINCT FROM 'ahead'
                AND (
                    status IN ('queued', 'running')
                    OR gate = 'rate'
                    OR (
                        (started_at IS NOT NULL OR attempts > 0)
                        AND limit_kind IN ('sequence', 'halting')
                        AND (status = 'scheduled' OR gate = 'held')
                    )
                    OR (limit_kind = 'halting' AND status = 'failed')
                )
            LIMIT %(limit)s
        ) AS job
    ) AS held,
    LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE gate = 'limit' AND limit_key = key.name
            ORDER BY
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END), id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place

-- BLOCK_SURPLUS (parts.limits.queues)
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY status DESC, priority DESC, id) AS place
            FROM (
                SELECT id, status, priority
                FROM skipqueue_job
                WHERE
                    limit_key = 'queue:' || queue.name
                    AND (
                        status IN ('queued', 'running')
                        OR gate = 'rate'
                        OR (
                            (started_at IS NOT NULL OR attempts > 0)
                            AND limit_kind IN ('sequence', 'halting')
                            AND (status = 'scheduled' OR gate = 'held')
                        )
                        OR (limit_kind = 'halting' AND status = 'failed')
                    )
                LIMIT queue.concurrency + %(limit)s
            ) AS holder
        ) AS held
        JOIN skipqueue_job AS job USING (id)
    WHERE
        queue.concurrency > 0
        AND held.place > queue.concurrency
        AND (job.status = 'queued' OR job.gate = 'rate')
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'limit'
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.id
)
SELECT count(*) FROM blocked

-- LIMIT_QUEUE (parts.limits.queues)
INSERT INTO skipqueue_queue AS queue (name, concurrency)
VALUES (%(name)s, %(concurrency)s::smallint)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency

-- LOCK_KEYS (parts.limits.sql)
WITH wanted AS MATERIALIZED (
    SELECT key, sum(ended_count)::integer AS ended_count, bool_or(next_may_start) AS next_may_start
    FROM (
        SELECT
            limit_key AS key,
            CASE WHEN status = 'running' THEN 0 ELSE 1 END AS ended_count,
            (
                limit_kind IN ('sequence', 'halting')
                AND (status IN ('completed', 'discarded') OR (status = 'failed' AND limit_kind = 'sequence'))
                AND xmin = pg_current_xact_id_if_assigned()::xid
            ) IS TRUE AS next_may_start
        FROM skipqueue_job
        WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND limit_key IS NOT NULL
        UNION ALL
        SELECT unnest((SELECT %(keys)s::text[])), 0, false
    ) AS touched
    GROUP BY key
),
lock AS MATERIALIZED (
    SELECT
        slot,
        CASE
            WHEN current_setting('transaction_isolation') = 'read committed'
            THEN pg_try_advisory_xact_lock(1397442896, slot)
            ELSE false
        END AS is_ours
    FROM (SELECT DISTINCT hashtext(key) & 1023 AS slot FROM wanted) AS slots
)
SELECT
    array_agg(wanted.key) FILTER (WHERE NOT lock.is_ours) AS missed,
    set_config(
        'skipqueue.locked_keys', COALESCE(array_agg(wanted.key) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) || set_config(
        'skipqueue.ended_jobs', COALESCE(array_agg(wanted.ended_count) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) || set_config(
        'skipqueue.free_keys', COALESCE(array_agg(wanted.next_may_start) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023

-- CONTESTED_PERMITS (parts.limits.services)
WITH RECURSIVE served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_external
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.concurrency = 0
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
),
walk AS (
    (
        SELECT limit_key AS key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > %(after)s::text
        ORDER BY limit_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key > walk.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT waiting_key.key, unclaimed.is_inverted, unclaimed.unserved, unclaimed.held_up
FROM
    served
    CROSS JOIN waiting_key
    LEFT JOIN LATERAL (
        SELECT (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank, id
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key = waiting_key.key AND (limit_kind IN ('sequence', 'halting') OR (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ))
        ORDER BY rank, id
        LIMIT 1
    ) AS head ON true
    CROSS JOIN LATERAL (
        SELECT
            bool_or(head.rank < holder.rank OR (holder.is_in_order AND head.id < holder.id)) AS is_inverted,
            (array_agg(holder.id ORDER BY rank DESC, id DESC) FILTER (
                WHERE NOT (holder.is_in_order OR holder.is_served)
            ))[:100] AS unserved,
            (array_agg(holder.id ORDER BY rank DESC, id DESC) FILTER (
                WHERE holder.is_served AND NOT holder.is_in_order
            ))[:100] AS held_up
        FROM (
            SELECT (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank, id, limit_kind IN ('sequence', 'halting') AS is_in_order, (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ) AS is_served
            FROM skipqueue_job
            WHERE limit_key = waiting_key.key AND (status = 'queued' OR gate = 'rate')
                AND NOT (limit_kind IN ('sequence', 'halting') AND (started_at IS NOT NULL OR attempts > 0)) AND head.id IS NOT NULL
        ) AS holder
    ) AS unclaimed
ORDER BY waiting_key.key

-- PASS_PERMITS_ON (parts.limits.services)
WITH served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_external
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.concurrency = 0
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
),
holder AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY rank DESC, id DESC) AS place
    FROM
        unnest((SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank, id, limit_kind IN ('sequence', 'halting') AS is_in_order, queue_name
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND (status = 'queued' OR gate = 'rate')
                AND NOT (limit_kind IN ('sequence', 'halting') AND (started_at IS NOT NULL OR attempts > 0))
                AND (%(ids)s::bigint[] IS NULL OR array_position(%(ids)s::bigint[], id) > 0)
            ORDER BY rank DESC, id DESC
            LIMIT 100
        ) AS job
),
waiting AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY rank, id) AS place
    FROM
        (SELECT name, count(*) AS number, array_agg(DISTINCT queue_name) AS queues FROM holder GROUP BY name) AS key,
        served,
        LATERAL (
            SELECT (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank, id
            FROM skipqueue_job
            WHERE
                gate = 'limit'
                AND limit_key = key.name
                AND (limit_kind IN ('sequence', 'halting') OR (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ))
                AND (%(ids)s::bigint[] IS NULL OR queue_name <> ALL (key.queues))
            ORDER BY rank, id
            LIMIT key.number
        ) AS job
),
pair AS MATERIALIZED (
    SELECT name, place, holder.id AS holder_id, waiting.id AS waiting_id
    FROM holder JOIN waiting USING (name, place)
    WHERE
        %(ids)s::bigint[] IS NOT NULL
        OR waiting.rank < holder.rank
        OR (holder.is_in_order AND waiting.id < holder.id)
),
to_put_back AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (SELECT holder_id FROM pair))
        AND (status || '' = 'queued' OR gate || '' = 'rate')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
put_back AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'limit'
    WHERE job.id = ANY (ARRAY (SELECT id FROM to_put_back))
    RETURNING job.id, job.limit_key AS name
),
chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (
            SELECT pair.waiting_id
            FROM pair JOIN (SELECT name, count(*) AS number FROM put_back GROUP BY name) AS freed USING (name)
            WHERE pair.place <= freed.number
        ))
        AND gate = 'limit'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = CASE WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END,
        gate = CASE WHEN job.rate_key::text IS NOT NULL THEN 'rate' END,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
    RETURNING job.queue_name, job.status, rate_key AS next_gate_key
)
SELECT queue_name, count(*) FILTER (WHERE status = 'queued'), array_agg(next_gate_key) FILTER (WHERE status = 'blocked'), (SELECT array_agg(id) FROM put_back) FROM admitted GROUP BY queue_name

-- LOCK_RATES (parts.rates.admit)
WITH wanted AS MATERIALIZED (
    SELECT unnest((SELECT %(keys)s::text[])) AS key
),
lock AS MATERIALIZED (
    SELECT
        slot,
        CASE
            WHEN current_setting('transaction_isolation') = 'read committed'
            THEN pg_try_advisory_xact_lock(1397442897, slot)
            ELSE false
        END AS is_ours
    FROM (SELECT DISTINCT hashtext(key) & 1023 AS slot FROM wanted) AS slots
)
SELECT
    array_agg(wanted.key) FILTER (WHERE NOT lock.is_ours) AS missed,
    set_config(
        'skipqueue.locked_rates', COALESCE(array_agg(wanted.key) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023

-- ADMIT_BY_RATE (parts.rates.admit)
WITH paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
),
bucket AS MATERIALIZED (
    SELECT
        key.name,
        rated.seconds AS seconds_per_token,
        rated.burst,
        queued.number AS queued,
        tokens.taken,
        COALESCE(
            LEAST(floor(rated.burst - tokens.taken + 0.000001)::integer, rated.burst - queued.number::integer), 1000
        ) AS free
    FROM
        paused
        CROSS JOIN unnest((SELECT NULLIF(current_setting('skipqueue.locked_rates', true), '')::text[])) AS key (name)
        LEFT JOIN skipqueue_rate AS rate ON rate.key = key.name
        CROSS JOIN LATERAL (
            SELECT rate_interval, rate_burst
            FROM skipqueue_job
            WHERE
                gate = 'rate'
                AND rate_key = key.name
                AND queue_name <> ALL (paused.names)
            ORDER BY (-priority), run_after, id
            LIMIT 1
        ) AS head
        CROSS JOIN LATERAL (
            SELECT
                CASE WHEN queue_rate IS NULL THEN head.rate_interval ELSE NULLIF(queue_rate[1], 0) END AS seconds,
                CASE
                    WHEN queue_rate IS NULL AND head.rate_interval IS NOT NULL THEN head.rate_burst
                    WHEN queue_rate[1] > 0 THEN queue_rate[2]::integer
                END AS burst
            FROM (
                SELECT CASE
                    WHEN starts_with(key.name, 'queue:')
                    THEN (
                        SELECT ARRAY[queue.rate_interval, queue.rate_burst]
                        FROM skipqueue_queue AS queue
                        WHERE name = substr(key.name, 7) AND queue.rate_interval IS NOT NULL
                    )
                END AS queue_rate
            ) AS changed
        ) AS rated
        CROSS JOIN LATERAL (
            SELECT count(*) AS number
            FROM (
                SELECT
                FROM skipqueue_job
                WHERE status = 'queued' AND rate_key = key.name
                LIMIT COALESCE(rated.burst, 0)
            ) AS queued_job
        ) AS queued
        CROSS JOIN LATERAL (
            SELECT LEAST(
                GREATEST(
                    COALESCE(extract(epoch FROM rate.full_at - statement_timestamp())::float8 / rated.seconds, 0),
                    queued.number - CASE WHEN rate.due_at IS NULL THEN 0 ELSE 0.1 END / rated.seconds
                ),
                rated.burst
            ) AS taken
        ) AS tokens
),
chosen AS MATERIALIZED (
    SELECT job.place
    FROM
        paused,
        bucket,
        LATERAL (
            SELECT ctid AS place
            FROM skipqueue_job
            WHERE
                gate = 'rate'
                AND rate_key = bucket.name
                AND queue_name <> ALL (paused.names)
            ORDER BY (-priority), run_after, id
            LIMIT bucket.free
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued', gate = NULL
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.rate_key
),
changed AS MATERIALIZED (
    SELECT
        bucket.*,
        admission.taken_now,
        bucket.taken + admission.taken_now AS missing_tokens,
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM skipqueue_job
                WHERE
                    gate = 'rate'
                    AND rate_key = bucket.name
                    AND queue_name <> ALL (paused.names)
                LIMIT admission.taken_now + 1
            ) AS waiting
        ) > admission.taken_now AS has_more
    FROM
        paused
        CROSS JOIN bucket
        LEFT JOIN (SELECT rate_key, count(*) AS number FROM admitted GROUP BY rate_key) AS counted
        ON counted.rate_key = bucket.name
        CROSS JOIN LATERAL (SELECT COALESCE(counted.number, 0) AS taken_now) AS admission
),
stored AS (
    INSERT INTO skipqueue_rate AS rate (key, full_at, due_at)
    SELECT
        name,
        statement_timestamp() + make_interval(secs => COALESCE(missing_tokens * seconds_per_token, 0)),
        CASE
            WHEN has_more AND seconds_per_token IS NULL THEN statement_timestamp()
            WHEN has_more
            THEN statement_timestamp() + make_interval(
                secs => GREATEST(
                    (missing_tokens - (burst - 1)) * seconds_per_token,
                    LEAST(
                        burst * seconds_per_token / 4,
                        CASE WHEN queued + taken_now >= burst THEN 0.5 ELSE 0.05 END
                    )
                )
            )
        END
    FROM changed
    ORDER BY name
    ON CONFLICT (key) DO UPDATE SET full_at = excluded.full_at, due_at = excluded.due_at
),
idle AS (
    UPDATE skipqueue_rate
    SET due_at = NULL
    WHERE
        key = ANY ((SELECT NULLIF(current_setting('skipqueue.locked_rates', true), '')::text[])::text[])
        AND due_at IS NOT NULL
        AND key <> ALL (ARRAY (SELECT name FROM bucket))
)
SELECT queue_name, count(*) FROM admitted GROUP BY queue_name

-- NEXT_RATE (parts.rates.admit)
SELECT extract(epoch FROM due_at - statement_timestamp())::float8
FROM skipqueue_rate
WHERE due_at IS NOT NULL
ORDER BY due_at, full_at
LIMIT 1

-- DUE_RATES (parts.rates.admit)
SELECT key
FROM skipqueue_rate
WHERE due_at <= statement_timestamp()
ORDER BY due_at, full_at
LIMIT %(limit)s

-- BLOCKED_RATES (parts.rates.admit)
WITH RECURSIVE walk AS (
    (
        SELECT rate_key AS key
        FROM skipqueue_job
        WHERE
            gate = 'rate'
            AND rate_key > %(after)s::text
        ORDER BY rate_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT rate_key
        FROM skipqueue_job
        WHERE
            gate = 'rate'
            AND rate_key > walk.key
        ORDER BY rate_key
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT
    waiting_key.key,
    (
        SELECT rate.due_at <= statement_timestamp() + make_interval(
            secs => GREATEST(
                COALESCE(
                    CASE
                        WHEN starts_with(waiting_key.key, 'queue:')
                        THEN (
                            SELECT queue.rate_interval
                            FROM skipqueue_queue AS queue
                            WHERE name = substr(waiting_key.key, 7)
                        )
                    END,
                    (
                        SELECT rate_interval
                        FROM skipqueue_job
                        WHERE
                            gate = 'rate'
                            AND rate_key = waiting_key.key
                        ORDER BY (-priority), run_after, id
                        LIMIT 1
                    )
                ),
                1
            )
        )
        FROM skipqueue_rate AS rate
        WHERE rate.key = waiting_key.key
    ) IS NOT TRUE AS needs_check
FROM waiting_key

-- PRUNE_RATES (parts.rates.admit)
WITH full_again AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_rate
    WHERE due_at IS NULL AND full_at < statement_timestamp() - interval '1 minute'
    ORDER BY due_at, full_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_rate AS bucket
    WHERE bucket.ctid = ANY (ARRAY (SELECT place FROM full_again))
    RETURNING bucket.key
)
SELECT count(*) FROM deleted

-- RATE_KEYS_NOW (parts.rates.states)
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text,
    rated.seconds, rated.burst,
    CASE
        WHEN rated.burst IS NOT NULL
        THEN GREATEST(0, floor(
            rated.burst + 0.000001 - GREATEST(
                COALESCE(extract(epoch FROM rate.full_at - statement_timestamp())::float8 / rated.seconds, 0),
                queued.number
            )
        ))::integer
    END,
    waiting.number,
    date_part('epoch', rate.due_at - statement_timestamp()),
    date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place)
    LEFT JOIN skipqueue_rate AS rate ON rate.key = key.name
    CROSS JOIN LATERAL (
        SELECT id, task, args, kwargs, rate_interval, rate_burst
        FROM skipqueue_job
        WHERE
            gate = 'rate'
            AND rate_key = key.name
        ORDER BY (-priority), run_after, id
        LIMIT 1
    ) AS head
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN queue_rate IS NULL THEN head.rate_interval ELSE NULLIF(queue_rate[1], 0) END AS seconds,
            CASE
                WHEN queue_rate IS NULL AND head.rate_interval IS NOT NULL THEN head.rate_burst
                WHEN queue_rate[1] > 0 THEN queue_rate[2]::integer
            END AS burst
        FROM (
            SELECT CASE
                WHEN starts_with(key.name, 'queue:')
                THEN (
                    SELECT ARRAY[queue.rate_interval, queue.rate_burst]
                    FROM skipqueue_queue AS queue
                    WHERE name = substr(key.name, 7) AND queue.rate_interval IS NOT NULL
                )
            END AS queue_rate
        ) AS changed
    ) AS rated
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE status = 'queued' AND rate_key = key.name
            LIMIT COALESCE(rated.burst, 0)
        ) AS queued_job
    ) AS queued
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE
                gate = 'rate'
                AND rate_key = key.name
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place

-- BLOCK_UNRATED (parts.rates.queues)
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT CASE
                WHEN queue.rate_interval IS NOT NULL THEN queue.rate_burst::integer
                ELSE (
                    SELECT rate_burst
                    FROM skipqueue_job
                    WHERE rate_key = 'queue:' || queue.name AND status = 'queued'
                    LIMIT 1
                )
            END AS burst
        ) AS rated,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY priority DESC, run_after, id) AS place
            FROM (
                SELECT id, priority, run_after
                FROM skipqueue_job
                WHERE rate_key = 'queue:' || queue.name AND status = 'queued' AND rated.burst IS NOT NULL
                LIMIT COALESCE(rated.burst, 0) + %(limit)s
            ) AS found
        ) AS queued
        JOIN skipqueue_job AS job USING (id)
    WHERE queued.place > rated.burst AND job.status || '' = 'queued'
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'rate'
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.rate_key
)
SELECT rate_key, count(*) FROM blocked GROUP BY rate_key

-- RATE_QUEUE (parts.rates.queues)
INSERT INTO skipqueue_queue AS queue (name, rate_interval, rate_burst)
VALUES (%(name)s, %(interval)s::float8, %(burst)s::smallint)
ON CONFLICT (name) DO UPDATE SET rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst

-- CONTESTED_TOKENS (parts.rates.services)
WITH RECURSIVE served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_external
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.concurrency = 0
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
),
walk AS (
    (
        SELECT rate_key AS key
        FROM skipqueue_job
        WHERE gate = 'rate' AND rate_key > %(after)s::text
        ORDER BY rate_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT rate_key
        FROM skipqueue_job
        WHERE gate = 'rate' AND rate_key > walk.key
        ORDER BY rate_key
        LIMIT 1
    )
    FROM walk
    WHERE walk.key IS NOT NULL
),
waiting_key AS MATERIALIZED (SELECT key FROM walk WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT waiting_key.key, unclaimed.is_inverted, unclaimed.unserved, unclaimed.held_up
FROM
    served
    CROSS JOIN waiting_key
    LEFT JOIN LATERAL (
        SELECT (-priority) AS rank, run_after, id
        FROM skipqueue_job
        WHERE gate = 'rate' AND rate_key = waiting_key.key AND (false OR (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ))
        ORDER BY rank, run_after, id
        LIMIT 1
    ) AS head ON true
    CROSS JOIN LATERAL (
        SELECT
            bool_or(head.rank < holder.rank OR (holder.is_in_order AND head.id < holder.id)) AS is_inverted,
            (array_agg(holder.id ORDER BY rank DESC, run_after DESC, id DESC) FILTER (
                WHERE NOT (holder.is_in_order OR holder.is_served)
            ))[:100] AS unserved,
            (array_agg(holder.id ORDER BY rank DESC, run_after DESC, id DESC) FILTER (
                WHERE holder.is_served AND NOT holder.is_in_order
            ))[:100] AS held_up
        FROM (
            SELECT (-priority) AS rank, run_after, id, false AS is_in_order, (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ) AS is_served
            FROM skipqueue_job
            WHERE rate_key = waiting_key.key AND status = 'queued' AND head.id IS NOT NULL
        ) AS holder
    ) AS unclaimed
ORDER BY waiting_key.key

-- PASS_TOKENS_ON (parts.rates.services)
WITH served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_external
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.concurrency = 0
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
),
holder AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY rank DESC, run_after DESC, id DESC) AS place
    FROM
        unnest((SELECT NULLIF(current_setting('skipqueue.locked_rates', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT (-priority) AS rank, run_after, id, false AS is_in_order, queue_name
            FROM skipqueue_job
            WHERE
                rate_key = key.name
                AND status = 'queued'
                AND (%(ids)s::bigint[] IS NULL OR array_position(%(ids)s::bigint[], id) > 0)
            ORDER BY rank DESC, run_after DESC, id DESC
            LIMIT 100
        ) AS job
),
waiting AS MATERIALIZED (
    SELECT key.name, job.*, row_number() OVER (PARTITION BY key.name ORDER BY rank, run_after, id) AS place
    FROM
        (SELECT name, count(*) AS number, array_agg(DISTINCT queue_name) AS queues FROM holder GROUP BY name) AS key,
        served,
        LATERAL (
            SELECT (-priority) AS rank, run_after, id
            FROM skipqueue_job
            WHERE
                gate = 'rate'
                AND rate_key = key.name
                AND (false OR (
                    ((served.are_all AND queue_name <> ALL (%(external)s::text[])) OR queue_name = ANY (served.names))
                    AND queue_name <> ALL (served.paused)
                ))
                AND (%(ids)s::bigint[] IS NULL OR queue_name <> ALL (key.queues))
            ORDER BY rank, run_after, id
            LIMIT key.number
        ) AS job
),
pair AS MATERIALIZED (
    SELECT name, place, holder.id AS holder_id, waiting.id AS waiting_id
    FROM holder JOIN waiting USING (name, place)
    WHERE
        %(ids)s::bigint[] IS NOT NULL
        OR waiting.rank < holder.rank
        OR (holder.is_in_order AND waiting.id < holder.id)
),
to_put_back AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (SELECT holder_id FROM pair))
        AND (status || '' = 'queued' OR gate || '' = 'rate')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
put_back AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', gate = 'rate'
    WHERE job.id = ANY (ARRAY (SELECT id FROM to_put_back))
    RETURNING job.id, job.rate_key AS name
),
chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (ARRAY (
            SELECT pair.waiting_id
            FROM pair JOIN (SELECT name, count(*) AS number FROM put_back GROUP BY name) AS freed USING (name)
            WHERE pair.place <= freed.number
        ))
        AND gate = 'rate'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued', gate = NULL
    WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
    RETURNING job.queue_name, job.status, NULL::text AS next_gate_key
)
SELECT queue_name, count(*), (SELECT array_agg(id) FROM put_back) FROM admitted GROUP BY queue_name

-- ADD_CHILDREN (parts.steps.children)
WITH added AS (
    INSERT INTO skipqueue_child (parent_id, name, position, job_id)
    SELECT %(job_id)s, %(name)s, child.position, child.id
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS child (id, position)
),
needed AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT
        %(job_id)s,
        COALESCE((SELECT max(position) FROM skipqueue_dependency WHERE job_id = %(job_id)s), 0) + child.position,
        child.id,
        'run'
    FROM (
        SELECT id, min(position) AS position
        FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS child (id, position)
        GROUP BY id
    ) AS child
)
UPDATE skipqueue_job AS parent
SET held = true
WHERE parent.id = %(job_id)s
RETURNING (
    SELECT min(child.id)
    FROM skipqueue_job AS child
    WHERE child.id = ANY (%(ids)s::bigint[]) AND child.finished_at IS NULL AND (
            child.limit_kind IN ('sequence', 'halting') AND child.limit_key = parent.limit_key
        )
)

-- CHILDREN (parts.steps.children)
SELECT child.job_id, job.task, job.status, job.result::text, job.last_error
FROM
    skipqueue_child AS child
    LEFT JOIN skipqueue_job AS job ON job.id = child.job_id
WHERE child.parent_id = %(job_id)s AND child.name = %(name)s
ORDER BY child.position

-- HOLD_AGAIN (parts.steps.children)
WITH held AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = %(job_id)s AND lease = %(lease)s
    FOR NO KEY UPDATE
),
needed AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = false
    FROM held
    WHERE needs.job_id = held.id AND needs.needs_job_id = ANY (%(ids)s::bigint[])
    RETURNING needs.needs_job_id
),
needed_again AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT
        held.id,
        COALESCE((SELECT max(position) FROM skipqueue_dependency WHERE job_id = held.id), 0)
            + row_number() OVER (ORDER BY child.id),
        child.id,
        'run'
    FROM held, (SELECT DISTINCT unnest(%(ids)s::bigint[]) AS id EXCEPT SELECT needs_job_id FROM needed) AS child
)
UPDATE skipqueue_job AS job SET held = true FROM held WHERE job.id = held.id RETURNING job.id

-- FORGET_CHILDREN (parts.steps.children)
DELETE FROM skipqueue_dependency WHERE job_id = %(job_id)s AND needs_job_id = ANY (%(ids)s::bigint[])

-- END_WAITS (parts.steps.children)
WITH ended AS (
    UPDATE skipqueue_step
    SET is_waiting = NULL
    WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND COALESCE(is_waiting, false)
    RETURNING job_id
),
let_go AS (
    UPDATE skipqueue_job SET held = NULL WHERE id = ANY (ARRAY (SELECT job_id FROM ended))
)
SELECT child.job_id
FROM
    skipqueue_step AS step
    JOIN skipqueue_child AS child ON child.parent_id = step.job_id AND child.name = step.name
    JOIN skipqueue_job AS job ON job.id = child.job_id
WHERE
    step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    AND step.kind = 'run'
    AND step.recorded_at IS NULL
    AND job.started_at IS NULL
    AND job.finished_at IS NULL
    AND (
        SELECT true
        FROM
            skipqueue_child AS shared
            JOIN skipqueue_job AS parent ON parent.id = shared.parent_id
        WHERE
            shared.job_id = child.job_id
            AND shared.parent_id <> child.parent_id
            AND parent.finished_at IS NULL
        LIMIT 1
    ) IS NOT TRUE

-- END_SLEEPS (parts.steps.children)
WITH asleep AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_step
    WHERE
        job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(kind, '') = 'sleep'
        AND wakes_at > statement_timestamp()
)
UPDATE skipqueue_step AS step
SET wakes_at = statement_timestamp()
WHERE step.ctid = ANY (ARRAY (SELECT place FROM asleep))
RETURNING step.job_id

-- MOVE_SLEEPS (parts.steps.children)
WITH asleep AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_step
    WHERE
        job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(kind, '') = 'sleep'
        AND wakes_at > statement_timestamp()
)
UPDATE skipqueue_step AS step
SET wakes_at = (SELECT run_after FROM skipqueue_job AS job WHERE job.id = step.job_id)
WHERE step.ctid = ANY (ARRAY (SELECT place FROM asleep))
RETURNING step.job_id

-- REOPEN_FAILED (parts.steps.children)
UPDATE skipqueue_step AS step
SET recorded_at = NULL, error = NULL
FROM (
    SELECT job_id, max(number) AS number
    FROM skipqueue_step
    WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    GROUP BY job_id
) AS last
WHERE
    step.job_id = last.job_id
    AND step.number = last.number
    AND step.error IS NOT NULL
    AND (
        SELECT split_part(job.last_error, ':', 1) IN ('SignalTimeout', 'ChildFailed')
        FROM skipqueue_job AS job
        WHERE job.id = step.job_id
    )
RETURNING step.job_id

-- STEP_COUNTS (parts.steps.console)
SELECT waiting.number, waiting.seconds, untaken.number, untaken.seconds, sleeping.number
FROM
    (
        SELECT
            count(*) AS number,
            COALESCE(extract(epoch FROM statement_timestamp() - min(started_at)), 0)::float8 AS seconds
        FROM (SELECT started_at FROM skipqueue_step WHERE is_waiting ORDER BY started_at LIMIT 10000) AS step
    ) AS waiting,
    (
        SELECT
            count(*) AS number,
            COALESCE(extract(epoch FROM statement_timestamp() - min(sent_at)), 0)::float8 AS seconds
        FROM (SELECT sent_at FROM skipqueue_signal WHERE taken_at IS NULL ORDER BY sent_at LIMIT 10000) AS signal
    ) AS untaken,
    (
        SELECT count(*) AS number
        FROM (
            SELECT job_id
            FROM skipqueue_step
            WHERE kind = 'sleep' AND wakes_at > statement_timestamp()
            ORDER BY wakes_at
            LIMIT 10000
        ) AS step
        WHERE EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = step.job_id AND job.status = 'scheduled')
    ) AS sleeping
LIMIT 1

-- UNTAKEN (parts.steps.console)
SELECT signal.job_id, job.task, signal.name, signal.sent_at
FROM
    (
        SELECT job_id, name, sent_at
        FROM skipqueue_signal
        WHERE taken_at IS NULL AND sent_at < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY sent_at
        LIMIT 1000
    ) AS signal
    JOIN skipqueue_job AS job ON job.id = signal.job_id
WHERE job.finished_at IS NULL
ORDER BY signal.sent_at
LIMIT 100

-- FORGET (parts.steps.console)
WITH steps AS (
    DELETE FROM skipqueue_step WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
),
signals AS (
    DELETE FROM skipqueue_signal WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
)
DELETE FROM skipqueue_child WHERE parent_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])

-- WITH_STEP (parts.steps.operate)
SELECT job_id FROM skipqueue_step WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND name = %(step)s

-- FORGET_STEPS (parts.steps.operate)
WITH first AS MATERIALIZED (
    SELECT step.job_id AS id, step.number
    FROM
        skipqueue_step AS step
        JOIN skipqueue_job AS job ON job.id = step.job_id
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND step.name = %(step)s
        AND job.status IN ('failed', 'discarded')
    ORDER BY step.job_id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
forgotten AS MATERIALIZED (
    DELETE FROM skipqueue_step AS step
    USING first
    WHERE step.job_id = first.id AND step.number >= first.number
    RETURNING step.job_id, step.name, step.kind
),
signals AS (
    DELETE FROM skipqueue_signal AS signal
    USING forgotten
    WHERE
        signal.job_id = forgotten.job_id
        AND signal.name = forgotten.name
        AND forgotten.kind = 'wait'
        AND signal.taken_at IS NOT NULL
),
children AS (
    DELETE FROM skipqueue_child AS child
    USING forgotten
    WHERE child.parent_id = forgotten.job_id AND child.name = forgotten.name
    RETURNING child.parent_id, child.job_id
),
needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING children
    WHERE needs.job_id = children.parent_id AND needs.needs_job_id = children.job_id
)
UPDATE skipqueue_job AS job SET held = NULL WHERE job.id = ANY (ARRAY (SELECT id FROM first)) RETURNING job.id

-- COPY_STEPS (parts.steps.operate)
INSERT INTO skipqueue_step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
SELECT
    made.copy_id, step.name, step.kind, step.number, 1, step.started_at, step.recorded_at, step.result, step.error,
    step.wakes_at
FROM
    unnest(%(ids)s::bigint[], %(copy_ids)s::bigint[]) AS made (id, copy_id)
    JOIN skipqueue_step AS first ON first.job_id = made.id AND first.name = %(step)s
    JOIN skipqueue_step AS step ON step.job_id = made.id
WHERE step.number < first.number AND step.recorded_at IS NOT NULL

-- STEPS (parts.steps.record)
SELECT
    name, kind, number, attempt, result::text, error::text, recorded_at IS NOT NULL,
    extract(epoch FROM wakes_at - statement_timestamp())::float8
FROM skipqueue_step
WHERE job_id = %(job_id)s
ORDER BY number

-- RECORD_STEP (parts.steps.record)
WITH held AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = %(job_id)s AND lease = %(lease)s
    FOR NO KEY UPDATE
)
INSERT INTO skipqueue_step AS step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
SELECT
    held.id, %(name)s, %(kind)s, %(number)s, %(attempt)s,
    statement_timestamp() - make_interval(secs => %(seconds)s::float8),
    CASE WHEN NOT %(is_open)s::boolean THEN statement_timestamp() END,
    %(result)s::text::jsonb, %(error)s::text::jsonb,
    statement_timestamp() + make_interval(secs => %(delay)s::float8)
FROM held
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, recorded_at = excluded.recorded_at, result = excluded.result, error = excluded.error
RETURNING 1

-- RECORD_STEP_AND_RESET (parts.steps.record)
WITH held AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = %(job_id)s AND lease = %(lease)s
    FOR NO KEY UPDATE
),
reset AS (
    UPDATE skipqueue_job AS job
    SET attempts = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN 1 ELSE job.attempts END,
        deaths = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN NULL ELSE job.deaths END,
        operations = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'reset', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'attempts_after', 1
    ) ELSE job.operations END,
        held = NULL
    FROM held
    WHERE job.id = held.id AND (%(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) OR job.held)
)
INSERT INTO skipqueue_step AS step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
SELECT
    held.id, %(name)s, %(kind)s, %(number)s, %(attempt)s,
    statement_timestamp() - make_interval(secs => %(seconds)s::float8),
    CASE WHEN NOT %(is_open)s::boolean THEN statement_timestamp() END,
    %(result)s::text::jsonb, %(error)s::text::jsonb,
    statement_timestamp() + make_interval(secs => %(delay)s::float8)
FROM held
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, recorded_at = excluded.recorded_at, result = excluded.result, error = excluded.error
RETURNING 1

-- TAKE_SIGNAL (parts.steps.record)
WITH held AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = %(job_id)s AND lease = %(lease)s
    FOR NO KEY UPDATE
),
taken AS (
    UPDATE skipqueue_signal AS signal
    SET taken_at = statement_timestamp()
    FROM held
    WHERE signal.job_id = held.id AND signal.name = %(name)s AND signal.taken_at IS NULL
    RETURNING signal.payload
),
found AS MATERIALIZED (
    SELECT
        held.id,
        (SELECT payload FROM taken) AS payload,
        EXISTS (SELECT FROM taken) AS is_taken,
        due.wakes_at,
        COALESCE(due.wakes_at <= statement_timestamp(), false) AS is_over
    FROM
        held,
        LATERAL (
            SELECT COALESCE(
                (SELECT wakes_at FROM skipqueue_step WHERE job_id = held.id AND name = %(name)s),
                statement_timestamp() + make_interval(secs => %(delay)s::float8)
            )
        ) AS due (wakes_at)
),
reset AS (
    UPDATE skipqueue_job AS job
    SET attempts = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN 1 ELSE job.attempts END,
        deaths = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN NULL ELSE job.deaths END,
        operations = CASE WHEN %(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) THEN COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'reset', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts, 'attempts_after', 1
    ) ELSE job.operations END,
        held = CASE WHEN NOT (found.is_taken OR found.is_over) THEN true END
    FROM found
    WHERE job.id = found.id AND (%(resets)s::boolean AND (job.attempts <> 1 OR job.deaths IS NOT NULL) OR job.held OR NOT (found.is_taken OR found.is_over))
)
INSERT INTO skipqueue_step AS step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at, is_waiting)
SELECT
    id, %(name)s, 'wait', %(number)s, %(attempt)s, statement_timestamp(),
    CASE WHEN is_taken OR is_over THEN statement_timestamp() END,
    payload,
    CASE WHEN is_over AND NOT is_taken THEN '{}'::jsonb END,
    wakes_at,
    CASE WHEN NOT (is_taken OR is_over) THEN true END
FROM found
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, recorded_at = excluded.recorded_at, result = excluded.result, error = excluded.error,
    wakes_at = excluded.wakes_at, is_waiting = excluded.is_waiting
RETURNING step.recorded_at IS NOT NULL, step.result::text, step.error::text

-- SEND_SIGNAL (parts.steps.signals)
INSERT INTO skipqueue_signal (job_id, name, payload, sent_at, by, reason)
SELECT id, %(name)s, %(payload)s::text::jsonb, statement_timestamp(), %(by)s, %(reason)s
FROM skipqueue_job
WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND finished_at IS NULL
ORDER BY id
ON CONFLICT (job_id, name) DO NOTHING
RETURNING job_id

-- WAKE (parts.steps.wake)
WITH ready AS MATERIALIZED (
    SELECT step.name, job.id
    FROM
        set_config('synchronous_commit', 'off', true),
        skipqueue_step AS step
        JOIN skipqueue_job AS job ON job.id = step.job_id
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(step.is_waiting, false)
        AND job.status <> 'running'
        AND (
            step.wakes_at <= statement_timestamp()
            OR EXISTS (
                SELECT
                FROM skipqueue_signal AS signal
                WHERE signal.job_id = step.job_id AND signal.name = step.name AND signal.taken_at IS NULL
            )
        )
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
gone AS (
    DELETE FROM skipqueue_step AS step
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(step.is_waiting, false)
        AND NOT EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = step.job_id)
),
woken AS (
    UPDATE skipqueue_step AS step
    SET is_waiting = NULL
    FROM ready
    WHERE step.job_id = ready.id AND step.name = ready.name
)
UPDATE skipqueue_job AS job
SET held = NULL,
    status = CASE WHEN job.status = 'blocked' AND job.gate = 'held' THEN CASE WHEN job.limit_key::text IS NOT NULL THEN 'blocked' WHEN job.rate_key::text IS NOT NULL THEN 'blocked' ELSE 'queued' END ELSE job.status END,
    gate = CASE WHEN job.status = 'blocked' AND job.gate = 'held' THEN CASE WHEN job.limit_key::text IS NOT NULL THEN 'limit' WHEN job.rate_key::text IS NOT NULL THEN 'rate' END ELSE job.gate END
WHERE job.id = ANY (ARRAY (SELECT id FROM ready))
RETURNING job.queue_name, job.status

-- READY (parts.steps.wake)
WITH untaken AS MATERIALIZED (
    SELECT job_id, name
    FROM skipqueue_signal
    WHERE taken_at IS NULL AND (job_id, name) > (%(after_id)s, %(after_name)s)
    ORDER BY job_id, name
    LIMIT %(limit)s
),
gone AS (
    DELETE FROM skipqueue_signal AS signal
    USING untaken
    WHERE
        signal.job_id = untaken.job_id
        AND signal.name = untaken.name
        AND NOT EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = untaken.job_id)
)
SELECT job_id, NULL, false
FROM (
    SELECT job_id
    FROM skipqueue_step
    WHERE is_waiting AND wakes_at <= statement_timestamp()
    ORDER BY wakes_at
    LIMIT %(limit)s
) AS over
UNION ALL
SELECT
    untaken.job_id,
    untaken.name,
    (
        SELECT COALESCE(step.is_waiting, false)
        FROM skipqueue_step AS step
        WHERE step.job_id = untaken.job_id AND step.name = untaken.name
    ) IS TRUE
FROM untaken

-- NEXT_READY (parts.steps.wake)
SELECT
    (
        SELECT extract(epoch FROM wakes_at - statement_timestamp())::float8
        FROM skipqueue_step
        WHERE is_waiting AND wakes_at IS NOT NULL
        ORDER BY wakes_at
        LIMIT 1
    ),
    (SELECT true FROM skipqueue_signal WHERE taken_at IS NULL ORDER BY job_id, name LIMIT 1) IS TRUE

-- CARRIERS_NOW (contrib.celery.console)
WITH held_jobs AS MATERIALIZED (
    SELECT locked_by, count(*) AS number, min(locked_at) AS oldest
    FROM (
        SELECT locked_by, locked_at
        FROM skipqueue_job
        WHERE status = 'running' AND EXISTS (SELECT FROM skipqueue_worker WHERE is_external)
        ORDER BY locked_at
        LIMIT %(limit)s
    ) AS job
    GROUP BY locked_by
)
SELECT
    carrier.name,
    carrier.queues::text,
    carrier.concurrency,
    COALESCE(held_jobs.number, 0),
    held_jobs.oldest,
    date_part('epoch', statement_timestamp() - held_jobs.oldest),
    (
        SELECT count(*)
        FROM skipqueue_celery_worker AS relay JOIN skipqueue_worker AS worker ON worker.id = relay.worker_id
        WHERE
            relay.relay_of = carrier.name
            AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s)
    ),
    date_part('epoch', statement_timestamp() - carrier.heartbeat_at),
    date_part('epoch', statement_timestamp() - celery_row.reached_at),
    celery_row.refused
FROM
    skipqueue_worker AS carrier
    JOIN skipqueue_celery_worker AS celery_row ON celery_row.worker_id = carrier.id
    LEFT JOIN held_jobs ON held_jobs.locked_by = carrier.id
WHERE carrier.is_external
ORDER BY carrier.name
LIMIT 200

-- HELD_FOR_LONG (contrib.celery.console)
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age, timeout
FROM (
    SELECT id, task, locked_by, locked_at, timeout
    FROM skipqueue_job
    WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE locked_by = %(carrier_id)s
ORDER BY locked_at
LIMIT 1000

-- STUCK_KEYS (parts.unique.console)
WITH RECURSIVE head AS (
    (
        SELECT queue_name, (-priority) AS rank, run_after
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next_head.queue_name, next_head.rank, next_head.run_after
    FROM
        head,
        LATERAL (
            SELECT queue_name, (-priority) AS rank, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (head.queue_name, head.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next_head
),
due_longest AS (
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after, id
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'blocked'
        ORDER BY id
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'running'
        ORDER BY locked_at
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT job.*
        FROM
            (SELECT * FROM head LIMIT 1000) AS head,
            LATERAL (
                SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
                FROM skipqueue_job
                WHERE status = 'queued' AND queue_name = head.queue_name AND (-priority) = head.rank
                ORDER BY run_after, id
                LIMIT 200
            ) AS job
        WHERE head.run_after < statement_timestamp() - make_interval(secs => %(seconds)s)
        LIMIT 2000
    )
)
SELECT id, task, unique_key, status, date_part('epoch', statement_timestamp() - GREATEST(enqueued_at, run_after)) AS age
FROM due_longest
WHERE
    unique_key IS NOT NULL
    AND (unique_seconds IS NULL OR unique_seconds > 0 OR lease = 0)
    AND GREATEST(enqueued_at, run_after) < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY age DESC
LIMIT 100

-- PAUSE_SCHEDULE (parts.schedules.operate)
UPDATE skipqueue_schedule
SET paused_at = statement_timestamp(), paused_by = %(by)s
WHERE id = %(id)s AND paused_at IS NULL
RETURNING name, paused_by

-- RESUME_SCHEDULE (parts.schedules.operate)
UPDATE skipqueue_schedule
SET paused_at = NULL,
    paused_by = '',
    next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8)
WHERE id = %(id)s AND paused_at IS NOT NULL
RETURNING name

-- NOTE_RUN (parts.schedules.operate)
UPDATE skipqueue_schedule
SET last_run_at = statement_timestamp(),
    last_job_id = %(job_id)s,
    earlier_job_ids = (array_remove(last_job_id || earlier_job_ids, NULL))[1:4],
    failing_since = (
        SELECT
            CASE
                WHEN count(*) FILTER (WHERE job.status IN ('completed', 'discarded')) > 0 THEN NULL
                ELSE COALESCE(
                    failing_since,
                    min(job.enqueued_at) FILTER (WHERE job.last_error > '')
                )
            END
        FROM skipqueue_job AS job
        WHERE job.id = ANY (last_job_id || earlier_job_ids)
    )
WHERE id = %(id)s

-- PLAN_SCHEDULE (parts.schedules.operate)
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8), fire_at = to_timestamp(%(next)s::float8), error = ''
WHERE id = %(id)s

-- TRY_SCHEDULE_AGAIN (parts.schedules.operate)
UPDATE skipqueue_schedule SET fire_at = next_run_at, error = '' WHERE id = %(id)s

-- LOCK_SCHEDULE (parts.schedules.operate)
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE id = %(id)s
FOR NO KEY UPDATE

-- DUE_SCHEDULE (parts.schedules.fire)
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE
    fire_at <= statement_timestamp()
    AND paused_at IS NULL
    AND (digest = ANY (%(digests)s::text[]) OR source = 'admin')
    AND id <> ALL (%(skipped)s::bigint[])
ORDER BY fire_at, id
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED

-- NEXT_FIRE (parts.schedules.fire)
SELECT extract(epoch FROM fire_at - statement_timestamp())::float8
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND fire_at IS NOT NULL
    AND (digest = ANY (%(digests)s::text[]) OR source = 'admin')
    AND id <> ALL (%(skipped)s::bigint[])
ORDER BY fire_at, id
LIMIT 1

-- NOTE_ERROR (parts.schedules.fire)
UPDATE skipqueue_schedule
SET error = %(error)s, fire_at = statement_timestamp() + make_interval(secs => %(delay)s)
WHERE id = %(id)s

-- LIMIT_KEY_LOCK (parts.schedules.fire)
SELECT set_config('lock_timeout', %(timeout)s, true)

-- FIRED (parts.schedules.fire)
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8),
    last_run_at = CASE WHEN cardinality(%(job_ids)s::bigint[]) = 0 THEN last_run_at ELSE statement_timestamp() END,
    last_job_id = COALESCE((%(job_ids)s::bigint[])[1], last_job_id),
    earlier_job_ids = CASE
        WHEN cardinality(%(job_ids)s::bigint[]) = 0 THEN earlier_job_ids
        ELSE (array_remove(%(job_ids)s::bigint[] || last_job_id || earlier_job_ids, NULL))[2:5]
    END,
    failing_since = (
        SELECT
            CASE
                WHEN count(*) FILTER (WHERE job.status IN ('completed', 'discarded')) > 0 THEN NULL
                ELSE COALESCE(
                    failing_since,
                    min(job.enqueued_at) FILTER (WHERE job.last_error > '')
                )
            END
        FROM skipqueue_job AS job
        WHERE job.id = ANY (last_job_id || earlier_job_ids)
    ),
    skipped_at = CASE WHEN %(is_skipped)s THEN statement_timestamp() ELSE skipped_at END,
    error = ''
WHERE id = %(id)s

-- IS_UNFINISHED (parts.schedules.fire)
SELECT EXISTS (SELECT FROM skipqueue_job WHERE id = %(id)s AND finished_at IS NULL)

-- CLOCK_IN_SECONDS (parts.schedules.entry)
SELECT extract(epoch FROM statement_timestamp())::float8

-- CONFIRM (parts.schedules.entry)
INSERT INTO skipqueue_schedule AS schedule (
    name, task, args, kwargs, cron, "interval", timezone, catch_up, overlap, jitter, source, digest, next_run_at,
    fire_at, confirmed_at
)
SELECT
    name, task, args, kwargs, cron, make_interval(secs => "interval"), timezone, catch_up, overlap, jitter, source,
    digest, to_timestamp(next), to_timestamp(next), statement_timestamp()
FROM json_to_recordset(%(entries)s::json) AS entry (
    name text, task text, args jsonb, kwargs jsonb, cron text, "interval" float8, timezone text, catch_up text,
    overlap text, jitter float8, source text, digest text, next float8
)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    task = EXCLUDED.task,
    args = EXCLUDED.args,
    kwargs = EXCLUDED.kwargs,
    cron = EXCLUDED.cron,
    "interval" = EXCLUDED."interval",
    timezone = EXCLUDED.timezone,
    catch_up = EXCLUDED.catch_up,
    overlap = EXCLUDED.overlap,
    jitter = EXCLUDED.jitter,
    source = EXCLUDED.source,
    next_run_at = CASE
        WHEN (schedule.cron, schedule.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
            AND schedule."interval" IS NOT DISTINCT FROM EXCLUDED."interval"
            THEN schedule.next_run_at
        ELSE EXCLUDED.next_run_at
    END,
    fire_at = CASE
        WHEN schedule.digest = EXCLUDED.digest THEN schedule.fire_at
        WHEN (schedule.cron, schedule.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
            AND schedule."interval" IS NOT DISTINCT FROM EXCLUDED."interval"
            THEN schedule.next_run_at
        ELSE EXCLUDED.fire_at
    END,
    error = CASE WHEN schedule.digest = EXCLUDED.digest THEN schedule.error ELSE '' END,
    previous_digest = CASE
        WHEN schedule.digest = EXCLUDED.digest THEN schedule.previous_digest ELSE schedule.digest
    END,
    digest = EXCLUDED.digest,
    confirmed_at = statement_timestamp(),
    retired_at = NULL
WHERE
    schedule.source <> 'admin'
    AND (
        schedule.digest = EXCLUDED.digest
        OR (NOT %(has_started)s AND schedule.previous_digest <> EXCLUDED.digest)
        OR schedule.confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)
    )
RETURNING name

-- RETIRE (parts.schedules.entry)
UPDATE skipqueue_schedule
SET retired_at = statement_timestamp()
WHERE
    source <> 'admin'
    AND retired_at IS NULL
    AND confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)

-- REMOVE (parts.schedules.entry)
DELETE FROM skipqueue_schedule
WHERE source <> 'admin' AND retired_at <= statement_timestamp() - make_interval(secs => %(kept)s)

-- ADMIN_SCHEDULES (parts.schedules.entry)
SELECT name FROM skipqueue_schedule WHERE name = ANY (%(names)s::text[]) AND source = 'admin'

-- WAITING_SCHEDULES (parts.schedules.entry)
SELECT
    extract(epoch FROM statement_timestamp())::float8, id, cron, "interval", timezone,
    extract(epoch FROM next_run_at)::float8
FROM skipqueue_schedule
WHERE paused_at IS NULL AND next_run_at > statement_timestamp() + make_interval(secs => %(margin)s)

-- BRING_BACK (parts.schedules.entry)
WITH ahead AS MATERIALIZED (
    SELECT schedule.id, to_timestamp(entry.next) AS next
    FROM
        json_to_recordset(%(entries)s::json) AS entry (id bigint, next float8)
        JOIN skipqueue_schedule AS schedule ON schedule.id = entry.id
    WHERE
        schedule.paused_at IS NULL
        AND schedule.next_run_at > to_timestamp(entry.next) + make_interval(secs => %(margin)s)
    ORDER BY schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE skipqueue_schedule AS schedule
SET next_run_at = ahead.next,
    fire_at = ahead.next
FROM ahead
WHERE schedule.id = ahead.id AND ahead.next > clock_timestamp()
RETURNING schedule.name

-- LATE_SCHEDULES (parts.schedules.console)
SELECT name, task, extract(epoch FROM statement_timestamp() - next_run_at)::float8, error, id, next_run_at
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND retired_at IS NULL
    AND next_run_at < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY next_run_at
LIMIT %(limit)s

-- LONG_HOLDERS (parts.limits.console)
SELECT limit_key, id, lease, task, locked_at, statement_timestamp()
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND limit_key IS NOT NULL
    AND limit_kind <> 'fair'
    AND gate IS DISTINCT FROM 'ahead'
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 1000

-- QUEUES_OF_TASK (parts.history.task_page)
SELECT
    date_part('epoch', statement_timestamp()),
    ARRAY (
        SELECT queue_name FROM skipqueue_rollup WHERE span = 0 AND task = %(task)s ORDER BY queue_name LIMIT %(limit)s
    )

-- BY_DEPLOYMENT (parts.history.task_page)
SELECT
    deployment.name, date_part('epoch', deployment.first_at), counted.attempts, counted.failed, counted.waited,
    counted.ran
FROM
    (
        SELECT name, first_at, COALESCE(lead(first_at) OVER (ORDER BY first_at), 'infinity') AS next_at
        FROM (SELECT name, first_at FROM skipqueue_deployment ORDER BY first_at DESC LIMIT %(limit)s) AS newest
    ) AS deployment,
    LATERAL (
        SELECT
            sum(completed + retried + snoozed + failed + discarded)::bigint AS attempts,
            sum(retried + failed)::bigint AS failed, sum(waited_seconds) AS waited, sum(ran_seconds) AS ran
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = ANY (%(queue_names)s)
            AND task = %(task)s
            AND starts_at >= deployment.first_at
            AND starts_at < deployment.next_at
    ) AS counted
WHERE counted.attempts > 0
ORDER BY deployment.first_at DESC

-- TIMELINE (parts.history.dashboard)
SELECT
    date_part('epoch', starts_at), completed, retried, failed, discarded, waited, ran, waited_longest, ran_longest,
    oldest_seconds
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = ANY (%(queue_names)s)
    AND task = %(task)s
    AND starts_at >= to_timestamp(%(since)s)
LIMIT 5000

-- DEEPEST_QUEUES (parts.history.dashboard)
WITH queue AS MATERIALIZED (
    SELECT queue_name AS name
    FROM (
        SELECT queue_name, task FROM skipqueue_rollup WHERE span = 0 ORDER BY queue_name, task LIMIT 20000
    ) AS rollup
    WHERE task = '' AND queue_name <> ''
    LIMIT 1000
)
SELECT queue.name
FROM
    queue,
    LATERAL (
        SELECT max(depth) AS depth
        FROM skipqueue_rollup
        WHERE
            span = 3600
            AND queue_name = queue.name
            AND task = ''
            AND starts_at >= date_trunc('hour', to_timestamp(%(since)s))
    ) AS deepest
WHERE deepest.depth > 0
ORDER BY deepest.depth DESC, queue.name
LIMIT %(limit)s

-- DEPTHS (parts.history.dashboard)
SELECT queue_name, floor(date_part('epoch', starts_at) / %(width)s) * %(width)s AS bucket, max(depth)
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = ANY (%(queue_names)s)
    AND task = ''
    AND starts_at >= to_timestamp(%(since)s)
    AND depth IS NOT NULL
GROUP BY queue_name, bucket

-- RECOVERED_IN_A_DAY (parts.history.dashboard)
SELECT
    COALESCE(sum(recovered), 0)::bigint,
    COALESCE(sum(recovered) FILTER (WHERE starts_at >= statement_timestamp() - interval '1 hour'), 0)::bigint
FROM skipqueue_rollup
WHERE
    span = 60
    AND queue_name = %(queue_name)s
    AND task = ''
    AND starts_at >= statement_timestamp() - interval '24 hours'

-- SLOWEST_TASKS (parts.history.dashboard)
WITH recent AS MATERIALIZED (
    SELECT
        queue_name, task, completed + snoozed + discarded AS passed, failed + retried AS failed, ran_seconds,
        ran_longest
    FROM skipqueue_rollup
    WHERE span = %(span)s AND starts_at >= to_timestamp(%(since)s)
    ORDER BY starts_at DESC
    LIMIT 50000
),
slow AS MATERIALIZED (
    SELECT
        task, queue_name, sum(passed + failed) AS attempts, sum(failed) AS failed,
        sum(ran_seconds) / sum(passed + failed) AS mean, max(ran_longest) AS longest
    FROM recent
    WHERE task <> '' AND (%(queue_name)s = '' OR queue_name = %(queue_name)s)
    GROUP BY task, queue_name
    HAVING sum(passed + failed) > 0
    ORDER BY mean DESC
    LIMIT %(limit)s
)
SELECT
    task, queue_name, attempts, failed, mean, longest,
    ARRAY (
        SELECT ARRAY[place, sum(number)]
        FROM skipqueue_rollup AS rollup, unnest(rollup.ran) WITH ORDINALITY AS bucket (number, place)
        WHERE
            rollup.span = %(span)s
            AND rollup.queue_name = slow.queue_name
            AND rollup.task = slow.task
            AND rollup.starts_at >= to_timestamp(%(since)s)
            AND number > 0
        GROUP BY place
    )
FROM slow

-- COUNT_OPEN_BATCHES (parts.batches.console)
SELECT
    count(*),
    coalesce(
        date_part(
            'epoch',
            statement_timestamp()
            - (SELECT created_at FROM skipqueue_batch WHERE finished_at IS NULL ORDER BY id LIMIT 1)
        ),
        0
    )
FROM (SELECT FROM skipqueue_batch WHERE finished_at IS NULL LIMIT 10000) AS open
LIMIT 1

-- STUCK_DEPENDANTS (parts.batches.console)
SELECT job.id, job.task, waiting.needs_job_id
FROM
    (
        SELECT needs_job_id, job_id, pruned_as
        FROM skipqueue_dependency
        WHERE NOT is_met AND after_failure = 'wait'
        ORDER BY needs_job_id
        LIMIT 5000
    ) AS waiting
    JOIN skipqueue_job AS job ON job.id = waiting.job_id
WHERE
    waiting.pruned_as IS DISTINCT FROM 'completed'
    AND (SELECT needed.id FROM skipqueue_job AS needed WHERE needed.id = waiting.needs_job_id) IS NULL
    AND job.held
    AND job.finished_at IS NULL
LIMIT 100

-- NOTE_FOUND (parts.alerts.watch)
INSERT INTO skipqueue_incident AS incident (rule, subject, severity, title, since)
SELECT rule, subject, severity, title, COALESCE(since, statement_timestamp())
FROM json_to_recordset(%(incidents)s::json)
    AS found (rule text, subject text, severity text, title text, since timestamptz)
ORDER BY rule, subject
ON CONFLICT (rule, subject) DO UPDATE
SET since = LEAST(incident.since, EXCLUDED.since),
    severity = EXCLUDED.severity,
    title = EXCLUDED.title,
    calm_since = NULL
WHERE incident.over_at IS NULL

-- NOTE_CALM (parts.alerts.watch)
UPDATE skipqueue_incident AS incident
SET calm_since = COALESCE(incident.calm_since, statement_timestamp()),
    over_at = CASE
        WHEN incident.calm_since <= statement_timestamp() - make_interval(secs => %(calm)s) THEN statement_timestamp()
    END
WHERE
    incident.rule > ''
    AND incident.over_at IS NULL
    AND incident.rule <> ALL (%(unknown)s::text[])
    AND NOT EXISTS (
        SELECT
        FROM json_to_recordset(%(incidents)s::json) AS found (rule text, subject text)
        WHERE found.rule = incident.rule AND found.subject = incident.subject
    )

-- FORGET_CALM (parts.alerts.watch)
DELETE FROM skipqueue_incident WHERE rule > '' AND raised_at IS NULL AND calm_since IS NOT NULL

-- RAISE (parts.alerts.watch)
UPDATE skipqueue_incident
SET raised_at = statement_timestamp()
WHERE rule > '' AND raised_at IS NULL AND found_at <= statement_timestamp() - make_interval(secs => %(lasts)s)

-- CLAIM_ALERTS (parts.alerts.watch)
UPDATE skipqueue_incident
SET claimed_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NOT NULL
    AND (NOT is_announced OR over_at IS NOT NULL)
    AND (claimed_at IS NULL OR claimed_at <= statement_timestamp() - make_interval(secs => %(patience)s))
RETURNING rule, subject, severity, title, since, over_at, is_announced

-- CONFIRM_BEGINNING (parts.alerts.watch)
UPDATE skipqueue_incident
SET is_announced = true, claimed_at = NULL
WHERE rule = %(rule)s AND subject = %(subject)s AND NOT is_announced

-- CONFIRM_END (parts.alerts.watch)
DELETE FROM skipqueue_incident
WHERE rule = %(rule)s AND subject = %(subject)s AND is_announced AND over_at IS NOT NULL

-- TAKE_TURN (parts.alerts.watch)
INSERT INTO skipqueue_incident AS incident (rule, subject, since)
VALUES ('', '', statement_timestamp())
ON CONFLICT (rule, subject) DO UPDATE SET since = statement_timestamp()
WHERE incident.since <= statement_timestamp() - make_interval(secs => %(interval)s)
RETURNING 1

-- KNOWN_SINCE (parts.alerts.watch)
SELECT rule, subject, since FROM skipqueue_incident WHERE rule > '' AND over_at IS NULL LIMIT 1000

-- IS_OVERDUE (console.rules.jobs_and_workers)
SELECT
FROM skipqueue_job
WHERE status = 'scheduled' AND run_after <= statement_timestamp()
ORDER BY run_after
LIMIT 1

-- WAITING_TASKS (console.rules.jobs_and_workers)
SELECT task, count(*), min(run_after), statement_timestamp()
FROM (
    SELECT job.task, job.run_after
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT task, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 200
        ) AS job
    UNION ALL
    (
        SELECT task, run_after
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after
        LIMIT 1000
    )
) AS first_jobs
GROUP BY task
ORDER BY task
LIMIT 1000

-- LONG_JOBS (console.rules.jobs_and_workers)
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 100

-- ORPHANED_JOBS (console.rules.jobs_and_workers)
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
        AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE NOT EXISTS (
    SELECT
    FROM skipqueue_worker AS worker
    WHERE
        worker.id = job.locked_by
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(seconds)s)
)
ORDER BY locked_at
LIMIT 100

-- OLDEST_WAITING (console.rules.jobs_and_workers)
WITH RECURSIVE first_jobs AS (
    (
        SELECT id, queue_name, (-priority) AS rank, run_after, limit_key IS NOT NULL OR rate_key IS NOT NULL AS is_keyed, xmin AS written_by
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.id, next.queue_name, next.rank, next.run_after, next.is_keyed, next.written_by
    FROM
        first_jobs,
        LATERAL (
            SELECT id, queue_name, (-priority) AS rank, run_after, limit_key IS NOT NULL OR rate_key IS NOT NULL AS is_keyed, xmin AS written_by
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (first_jobs.queue_name, first_jobs.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next
)
SELECT DISTINCT ON (queue_name) queue_name, id, run_after, statement_timestamp()
FROM (SELECT id, queue_name, run_after, is_keyed, written_by FROM first_jobs LIMIT 2000) AS first_job
WHERE
    NOT is_keyed
    AND run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND age(written_by) > (
        SELECT COALESCE(max(age(xmin)), 0)
        FROM skipqueue_worker
        WHERE heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
    )
ORDER BY queue_name, run_after
LIMIT 2000

-- UNENDABLE_SESSIONS (console.rules.jobs_and_workers)
SELECT DISTINCT supervisor_role.rolname, worker_role.rolname
FROM
    pg_stat_activity AS supervisor_session
    JOIN pg_roles AS supervisor_role ON supervisor_role.oid = supervisor_session.usesysid
    JOIN pg_stat_activity AS worker_session ON worker_session.datname = supervisor_session.datname
    JOIN pg_roles AS worker_role ON worker_role.oid = worker_session.usesysid
WHERE
    supervisor_session.datname = current_database()
    AND starts_with(supervisor_session.application_name, 'skipqueue supervisor')
    AND starts_with(worker_session.application_name, 'skipqueue:')
    AND NOT supervisor_role.rolsuper
    AND (worker_role.rolsuper OR NOT pg_has_role(supervisor_role.oid, worker_role.oid, 'USAGE'))
ORDER BY 1, 2
LIMIT 5

-- SLOT_HOLDERS (console.rules.jobs_and_workers)
SELECT id, lease, task, locked_by, locked_at, statement_timestamp()
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 5000

-- SLOW_STATEMENTS (console.rules.jobs_and_workers)
SELECT count(*)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND starts_with(application_name, 'skipqueue')
    AND state = 'active'
    AND query LIKE '%%skipqueue\_%%'
    AND query_start < clock_timestamp() - interval '1 second'
LIMIT 1

-- LOCKED_JOBS (console.rules.locks)
WITH looked_at AS MATERIALIZED (
    SELECT job.id, job.task, job.queue_name, false AS is_running, job.xmax
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT id, task, queue_name, run_after, xmax
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 20
        ) AS job
    WHERE job.run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
    UNION ALL
    (
        SELECT id, task, queue_name, false, xmax
        FROM skipqueue_job
        WHERE status = 'scheduled' AND run_after <= statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY run_after, id
        LIMIT 200
    )
    UNION ALL
    (
        SELECT id, task, queue_name, true, xmax
        FROM skipqueue_job
        WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY locked_at
        LIMIT 200
    )
),
locked AS MATERIALIZED (
    SELECT looked_at.id, looked_at.task, looked_at.queue_name, looked_at.is_running,
        COALESCE(member.xid, looked_at.xmax) AS xid
    FROM
        looked_at
        LEFT JOIN LATERAL (
            SELECT member.xid
            FROM
                pg_class AS job,
                pg_get_multixact_members(
                    CASE WHEN mxid_age(looked_at.xmax) BETWEEN 1 AND mxid_age(job.relminmxid) THEN looked_at.xmax END
                ) AS member
            WHERE job.oid = 'skipqueue_job'::regclass AND member.mode <> 'keysh'
            LIMIT 20
        ) AS member ON true
    WHERE looked_at.xmax <> '0'::xid
)
SELECT
    locked.id, locked.task, locked.queue_name, locked.is_running, session.pid, COALESCE(session.application_name, ''),
    COALESCE(session.state, ''), COALESCE(session.xact_start, prepared.prepared),
    COALESCE(left(session.query, 120), ''), COALESCE(prepared.gid, ''), statement_timestamp()
FROM
    locked
    LEFT JOIN pg_locks AS id_lock
        ON id_lock.locktype = 'transactionid' AND id_lock.granted AND id_lock.transactionid = locked.xid
    LEFT JOIN LATERAL (
        SELECT other_session.pid
        FROM pg_stat_activity AS other_session JOIN pg_locks AS table_lock ON table_lock.pid = other_session.pid
        WHERE
            id_lock.transactionid IS NULL
            AND age(other_session.backend_xid) >= age(locked.xid)
            AND table_lock.relation = 'skipqueue_job'::regclass
            AND table_lock.mode IN ('RowShareLock', 'RowExclusiveLock')
        ORDER BY age(other_session.backend_xid)
        LIMIT 1
    ) AS likely_locker ON true
    LEFT JOIN pg_stat_activity AS session ON session.pid = COALESCE(id_lock.pid, likely_locker.pid)
    LEFT JOIN pg_prepared_xacts AS prepared ON id_lock.pid IS NULL AND prepared.transaction = id_lock.transactionid
WHERE
    session.pid IS DISTINCT FROM pg_backend_pid()
    AND NOT starts_with(COALESCE(session.application_name, ''), 'skipqueue')
    AND COALESCE(session.xact_start, prepared.prepared) <= statement_timestamp() - make_interval(secs => %(seconds)s)
LIMIT 5000

-- LOCKED_JOB (console.rules.locks)
WITH looked_at AS MATERIALIZED (
    SELECT id, task, queue_name, status = 'running' AS is_running, xmax
    FROM skipqueue_job
    WHERE id = %(id)s
),
locked AS MATERIALIZED (
    SELECT looked_at.id, looked_at.task, looked_at.queue_name, looked_at.is_running,
        COALESCE(member.xid, looked_at.xmax) AS xid
    FROM
        looked_at
        LEFT JOIN LATERAL (
            SELECT member.xid
            FROM
                pg_class AS job,
                pg_get_multixact_members(
                    CASE WHEN mxid_age(looked_at.xmax) BETWEEN 1 AND mxid_age(job.relminmxid) THEN looked_at.xmax END
                ) AS member
            WHERE job.oid = 'skipqueue_job'::regclass AND member.mode <> 'keysh'
            LIMIT 20
        ) AS member ON true
    WHERE looked_at.xmax <> '0'::xid
)
SELECT
    locked.id, locked.task, locked.queue_name, locked.is_running, session.pid, COALESCE(session.application_name, ''),
    COALESCE(session.state, ''), COALESCE(session.xact_start, prepared.prepared),
    COALESCE(left(session.query, 120), ''), COALESCE(prepared.gid, ''), statement_timestamp()
FROM
    locked
    LEFT JOIN pg_locks AS id_lock
        ON id_lock.locktype = 'transactionid' AND id_lock.granted AND id_lock.transactionid = locked.xid
    LEFT JOIN LATERAL (
        SELECT other_session.pid
        FROM pg_stat_activity AS other_session JOIN pg_locks AS table_lock ON table_lock.pid = other_session.pid
        WHERE
            id_lock.transactionid IS NULL
            AND age(other_session.backend_xid) >= age(locked.xid)
            AND table_lock.relation = 'skipqueue_job'::regclass
            AND table_lock.mode IN ('RowShareLock', 'RowExclusiveLock')
        ORDER BY age(other_session.backend_xid)
        LIMIT 1
    ) AS likely_locker ON true
    LEFT JOIN pg_stat_activity AS session ON session.pid = COALESCE(id_lock.pid, likely_locker.pid)
    LEFT JOIN pg_prepared_xacts AS prepared ON id_lock.pid IS NULL AND prepared.transaction = id_lock.transactionid
WHERE
    session.pid IS DISTINCT FROM pg_backend_pid()
    AND NOT starts_with(COALESCE(session.application_name, ''), 'skipqueue')
    AND COALESCE(session.xact_start, prepared.prepared) <= statement_timestamp() - make_interval(secs => %(seconds)s)
LIMIT 5000

-- FREE_JOBS (console.rules.locks)
SELECT id FROM skipqueue_job WHERE id = ANY (%(ids)s::bigint[]) FOR NO KEY UPDATE SKIP LOCKED LIMIT 5000

-- NOTIFY_QUEUE (console.rules.server)
SELECT pg_notification_queue_usage()

-- CONNECTIONS (console.rules.server)
SELECT capacity.number, capacity.name, capacity.used
FROM (
    SELECT
        current_setting('max_connections')::integer
            - current_setting('superuser_reserved_connections')::integer
            - COALESCE(current_setting('reserved_connections', true), '0')::integer,
        'max_connections',
        (SELECT sum(numbackends) FROM pg_stat_database)
    UNION ALL
    SELECT datconnlimit, 'CONNECTION LIMIT of the database', (
        SELECT sum(numbackends) FROM pg_stat_database WHERE datname = current_database()
    )
    FROM pg_database
    WHERE datname = current_database() AND datconnlimit >= 0
    UNION ALL
    SELECT rolconnlimit, 'CONNECTION LIMIT of the role', (
        SELECT count(*) FROM pg_stat_activity WHERE usename = current_user
    )
    FROM pg_roles
    WHERE rolname = current_user AND rolconnlimit >= 0
) AS capacity (number, name, used)
ORDER BY capacity.number - capacity.used
LIMIT 3

-- IDLE_TRANSACTIONS (console.rules.server)
SELECT
    pid,
    application_name,
    usename,
    date_part('epoch', clock_timestamp() - state_change) AS age,
    left(query, 120)
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND pid <> pg_backend_pid()
    AND state LIKE 'idle in transaction%%'
    AND state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY state_change
LIMIT 5

-- HIDDEN_SESSIONS (console.rules.server)
SELECT
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    current_user,
    count(*) FILTER (WHERE usename <> current_user)
FROM pg_stat_activity
WHERE datname = current_database()
LIMIT 1

-- SETTINGS (console.rules.server)
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s::text[]) LIMIT 20

-- OLD_SESSIONS (console.rules.server)
SELECT
    pid,
    application_name,
    usename,
    COALESCE(state, ''),
    date_part('epoch', clock_timestamp() - xact_start) AS age,
    date_part('epoch', clock_timestamp() - query_start) AS query_age,
    GREATEST(age(backend_xmin), age(backend_xid)) AS transactions,
    left(query, 120),
    xact_start,
    clock_timestamp()
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND pid <> pg_backend_pid()
    AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY xact_start
LIMIT 5

-- OLD_SLOTS (console.rules.server)
SELECT slot_name, slot_type, active, age(xmin) AS transactions
FROM pg_replication_slots
WHERE
    xmin IS NOT NULL
    AND (database IS NULL OR database = current_database())
    AND (NOT active OR age(xmin) > %(transactions)s)
ORDER BY age(xmin) DESC
LIMIT 5

-- PREPARED_TRANSACTIONS (console.rules.server)
SELECT gid, owner, date_part('epoch', clock_timestamp() - prepared) AS age
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY prepared
LIMIT 5

-- OLD_STANDBYS (console.rules.server)
SELECT application_name, COALESCE(client_addr::text, ''), age(backend_xmin) AS transactions
FROM pg_stat_replication
WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > %(transactions)s
ORDER BY age(backend_xmin) DESC
LIMIT 5

-- LOCK_WAITS (console.rules.server)
SELECT
    waiting.pid,
    waiting.age,
    COALESCE(waiter.application_name, ''),
    COALESCE(left(waiter.query, 120), ''),
    blocking.pid AS blocking_pid,
    COALESCE(blocker.application_name, ''),
    COALESCE(blocker.state, ''),
    COALESCE(left(blocker.query, 120), ''),
    clock_timestamp()
FROM
    (
        SELECT awaited_lock.pid, date_part('epoch', clock_timestamp() - min(awaited_lock.waitstart)) AS age
        FROM pg_locks AS awaited_lock
        WHERE
            NOT awaited_lock.granted
            AND awaited_lock.waitstart < clock_timestamp() - make_interval(secs => %(seconds)s)
            AND EXISTS (
                SELECT
                FROM pg_locks AS table_lock, unnest(%(tables)s::text[]) AS queue_table (name)
                WHERE table_lock.pid = awaited_lock.pid AND table_lock.relation = to_regclass(queue_table.name)
            )
        GROUP BY awaited_lock.pid
        ORDER BY age DESC
        LIMIT 10
    ) AS waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
    LEFT JOIN pg_stat_activity AS waiter ON waiter.pid = waiting.pid
    LEFT JOIN pg_stat_activity AS blocker ON blocker.pid = blocking.pid
ORDER BY waiting.age DESC, blocking.pid
LIMIT 20

-- VACUUMS (console.rules.tables)
SELECT
    stat.relname,
    stat.n_live_tup,
    stat.n_dead_tup,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_vacuum, stat.last_autovacuum)) AS vacuum_age,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_analyze, stat.last_autoanalyze)) AS analyze_age
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
ORDER BY stat.n_dead_tup DESC
LIMIT 50

-- NEVER_ANALYZED (console.rules.tables)
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
WHERE class.reltuples < 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY class.relname
LIMIT 50

-- TABLE_SIZES (console.rules.tables)
SELECT
    queue_table.name,
    sum(pg_total_relation_size(COALESCE(partition.relid, to_regclass(queue_table.name))))::bigint AS total,
    sum(pg_indexes_size(COALESCE(partition.relid, to_regclass(queue_table.name))))::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
WHERE to_regclass(queue_table.name) IS NOT NULL
GROUP BY queue_table.name
ORDER BY total DESC
LIMIT 50

-- LARGE_INDEXES (console.rules.tables)
SELECT class.relname, pg_relation_size(class.oid), class.reltuples::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE index.indisvalid AND class.reltuples >= 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY pg_relation_size(class.oid) DESC
LIMIT 100

-- INVALID_INDEXES (console.rules.tables)
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE
    NOT index.indisvalid
    AND NOT EXISTS (
        SELECT FROM pg_stat_progress_create_index AS progress WHERE progress.relid = index.indrelid
    )
ORDER BY class.relname
LIMIT 50

-- TRANSACTION_IDS (console.rules.tables)
SELECT
    class.relname,
    age(class.relfrozenxid) AS age,
    mxid_age(class.relminmxid) AS multixact_age,
    current_setting('autovacuum_freeze_max_age')::bigint,
    current_setting('autovacuum_multixact_freeze_max_age')::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
WHERE class.relkind = 'r'
ORDER BY GREATEST(age(class.relfrozenxid), mxid_age(class.relminmxid)) DESC
LIMIT 50

-- STORAGE_PARAMETERS (console.rules.tables)
SELECT class.relname, COALESCE(class.reloptions, '{}')
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
ORDER BY class.relname
LIMIT 1000

-- TABLE_LOAD (console.rules.tables)
SELECT
    COALESCE(sum(stat.n_tup_ins + stat.n_tup_upd + stat.n_tup_del), 0)::bigint AS written,
    COALESCE(sum(
        COALESCE(io.heap_blks_read, 0) + COALESCE(io.idx_blks_read, 0)
        + COALESCE(io.toast_blks_read, 0) + COALESCE(io.tidx_blks_read, 0)
    ), 0)::bigint AS pages_read,
    COALESCE(sum(
        COALESCE(io.heap_blks_hit, 0) + COALESCE(io.idx_blks_hit, 0)
        + COALESCE(io.toast_blks_hit, 0) + COALESCE(io.tidx_blks_hit, 0)
    ), 0)::bigint AS pages_hit,
    min(database.tup_inserted + database.tup_updated + database.tup_deleted) AS all_written,
    min(database.blks_read) AS all_pages_read,
    min(database.blks_hit) AS all_pages_hit
FROM
    pg_stat_database AS database
    CROSS JOIN unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
    LEFT JOIN pg_statio_all_tables AS io ON io.relid = stat.relid
WHERE database.datname = current_database()
LIMIT 1

-- STATEMENTS_SCHEMA (console.rules.tables)
SELECT quote_ident(space.nspname)
FROM pg_extension AS extension JOIN pg_namespace AS space ON space.oid = extension.extnamespace
WHERE extension.extname = 'pg_stat_statements' AND current_setting('pg_stat_statements.max', true) IS NOT NULL
LIMIT 1

-- STATEMENT_TIMES (console.rules.tables)
SELECT
    COALESCE(sum(total_exec_time) FILTER (WHERE query LIKE '%%skipqueue\_%%'), 0) / 1000,
    COALESCE(sum(total_exec_time), 0) / 1000,
    COALESCE(bool_or(query IS NULL OR query = '<insufficient privilege>'), false)
FROM {schema}.pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
LIMIT 1

-- CLOCK (console.rules.rule)
SELECT clock_timestamp()

-- DEAD_ROWS (console.metrics.catalogue)
SELECT
    queue_table.name,
    sum(stat.n_live_tup)::bigint,
    sum(stat.n_dead_tup)::bigint,
    date_part('epoch', clock_timestamp() - max(GREATEST(stat.last_vacuum, stat.last_autovacuum)))
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
GROUP BY queue_table.name
ORDER BY queue_table.name
LIMIT 200

-- INDEX_SIZES (console.metrics.catalogue)
SELECT queue_table.name, whole_index.relname, sum(pg_relation_size(index.indexrelid))::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS whole_index ON whole_index.oid = COALESCE(pg_partition_root(index.indexrelid), index.indexrelid)
GROUP BY queue_table.name, whole_index.relname
ORDER BY queue_table.name, whole_index.relname
LIMIT 200

-- NOW (console.admin.dashboard)
SELECT date_part('epoch', statement_timestamp())

-- INDEXES (console.cli.indexes)
SELECT
    namespace.nspname,
    class.relname,
    pg_relation_size(class.oid),
    NOT index.indisvalid AND class.relname ~ '_cc(new|old)[0-9]*$'
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE class.relkind = 'i'
ORDER BY class.relname
LIMIT 10000

-- LIMIT_LOCK_WAITS (console.cli.indexes)
SELECT set_config('lock_timeout', %(lock_timeout)s, false), set_config('statement_timeout', '0', false)

-- REINDEX (console.cli.indexes)
REINDEX INDEX CONCURRENTLY {schema}.{index}

-- DROP_INDEX (console.cli.indexes)
DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}

-- FIRST_ID_SINCE (console.periods)
WITH RECURSIVE wanted (moment) AS MATERIALIZED (
    SELECT COALESCE(%(moment)s::timestamptz, statement_timestamp() - %(ago)s::interval) + %(allowance)s::interval
),
bisected (low, high) AS (
    SELECT first.id, last.id + 1
    FROM
        (SELECT id FROM skipqueue_job ORDER BY id LIMIT 1) AS first,
        (SELECT id FROM skipqueue_job ORDER BY id DESC LIMIT 1) AS last
    UNION ALL
    SELECT
        CASE WHEN probe.enqueued_at < wanted.moment THEN probe.id + 1 ELSE bisected.low END,
        CASE WHEN probe.enqueued_at < wanted.moment THEN bisected.high ELSE (bisected.low + bisected.high) / 2 END
    FROM
        bisected,
        wanted,
        LATERAL (
            SELECT id, enqueued_at
            FROM skipqueue_job
            WHERE id >= (bisected.low + bisected.high) / 2
            ORDER BY id
            LIMIT 1
        ) AS probe
    WHERE bisected.low < bisected.high
)
SELECT low FROM bisected WHERE low >= high LIMIT 1

-- CREATE_SEARCH_INDEX (console.search_indexes)
CREATE INDEX CONCURRENTLY {index} ON skipqueue_job (
    jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
)
WHERE task = {task}

-- FIND_BY_INDEX (console.search_indexes)
SELECT id
FROM skipqueue_job
WHERE
    task = {task}
    AND jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
    = jsonb_hash_extended({value}::jsonb, 0)
LIMIT {limit}

-- SEARCH_INDEXES (console.search_indexes)
SELECT
    namespace.nspname,
    class.relname,
    index.indisvalid,
    EXISTS (SELECT FROM pg_stat_progress_create_index AS build WHERE build.index_relid = class.oid)
FROM
    pg_index AS index
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE index.indrelid = to_regclass('skipqueue_job') AND starts_with(class.relname::text, 'skipqueue_search_')
ORDER BY class.relname
LIMIT 1000
