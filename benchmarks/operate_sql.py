"""The statements that fill the database of `benchmarks.operate`."""

# Jobs of all statuses. One of ten jobs is in a batch; each batch has a hundred jobs.
FILL = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, attempts, run_after, enqueued_at, locked_at, locked_by, started_at,
    finished_at, last_error, errors, batch_id
)
SELECT
    (ARRAY['default', 'mail', 'reports', 'imports'])[1 + n %% 4],
    'shop.jobs.' || (ARRAY['send_receipt', 'refund', 'build_report', 'sync_stock', 'welcome'])[1 + n %% 5],
    '[]', jsonb_build_object('payment_id', n, 'email', 'customer' || n || '@example.com'), status,
    CASE WHEN status = 'queued' OR (status = 'scheduled' AND n %% 100 < 90) THEN 0 ELSE 1 END,
    moment, enqueued, CASE WHEN status = 'running' THEN moment END, '', moment,
    CASE WHEN status IN ('completed', 'failed', 'discarded') THEN moment END,
    CASE WHEN status = 'failed' THEN 'SMTPDataError: 451 try again later' ELSE '' END,
    CASE WHEN status = 'failed' THEN jsonb_build_array(jsonb_build_object(
        'attempt', 1, 'exception', 'smtplib.SMTPDataError', 'place', 'shop.mail.deliver_' || 1 + n %% 10,
        'message', '451', 'traceback', '…'
    )) ELSE '[]' END,
    CASE WHEN n %% 10 = 0 THEN 1 + n / 1000 END
FROM
    generate_series(1, %(jobs)s) AS n,
    LATERAL (
        SELECT CASE
            WHEN n %% 100 < 60 THEN 'completed' WHEN n %% 100 < 75 THEN 'queued' WHEN n %% 100 < 85 THEN 'failed'
            WHEN n %% 100 < 92 THEN 'scheduled' WHEN n %% 10000 = 9999 THEN 'running' ELSE 'discarded'
        END AS status
    ) AS life,
    LATERAL (SELECT now() - (%(jobs)s - n) * interval '0.7 second' AS enqueued) AS past,
    LATERAL (SELECT enqueued + CASE WHEN status = 'scheduled' THEN interval '30 days' ELSE '0' END AS moment) AS clock
"""

FILL_ARCHIVE = """
INSERT INTO skipqueue_archivedjob (
    id, finished_at, enqueued_at, run_after, started_at, priority, attempts, max_attempts, status, queue_name, task,
    args, kwargs, locked_by, last_error, errors, metadata
)
SELECT
    id, finished_at, enqueued_at, run_after, started_at, priority, attempts, max_attempts, status, queue_name, task,
    args, kwargs, locked_by, last_error, errors, metadata
FROM skipqueue_job
WHERE status IN ('completed', 'failed', 'discarded')
ORDER BY id DESC
LIMIT %(archived)s
"""

# Counts for each minute of three days and each hour of 90 days, for each task in each queue, for each queue, and for
# all jobs, with histograms as workers write them. The numbers vary, so that charts have different values.
FILL_ROLLUPS = """
INSERT INTO skipqueue_rollup (
    span, queue_name, task, starts_at, enqueued, completed, failed, waited, ran, waited_seconds, ran_seconds, claims,
    depth, oldest_seconds
)
SELECT
    span.seconds, level.queue_name, level.task,
    CASE span.seconds
        WHEN 0 THEN to_timestamp(0)
        ELSE to_timestamp(floor(date_part('epoch', now()) / span.seconds - number) * span.seconds)
    END,
    60, (50 + number %% 20) * GREATEST(1, span.seconds / 60), number %% 3, histogram.counts, histogram.counts,
    12.5, 7.5, 30, CASE WHEN level.task = '' THEN number * 37 %% 5000 END, CASE WHEN level.task = '' THEN 1.5 END
FROM
    (VALUES (0, 1), (60, 3 * 1440), (3600, 90 * 24)) AS span (seconds, numbers),
    generate_series(1, span.numbers) AS number,
    (
        SELECT queue_name, 'shop.jobs.' || task AS task
        FROM
            unnest(ARRAY['default', 'mail', 'reports', 'imports']) AS queue_name,
            unnest(ARRAY['send_receipt', 'refund', 'build_report', 'sync_stock', 'welcome', '']) AS task
        UNION ALL
        SELECT '', 'shop.jobs.'
    ) AS named,
    LATERAL (SELECT queue_name, CASE task WHEN 'shop.jobs.' THEN '' ELSE task END) AS level (queue_name, task),
    LATERAL (
        SELECT ARRAY[0,0,1,3,8,20 + number %% 29,15,9,4 + number %% 13,2,1,0,0,0,0,0,0,0,0,0,0,0]::bigint[] AS counts
    ) AS histogram
"""

FILL_FAILURES = """
INSERT INTO skipqueue_failure_rollup (
    span, task, exception, place, starts_at, number, first_at, last_at, last_line, last_job_id
)
SELECT
    span.seconds, 'shop.jobs.send_receipt', 'smtplib.SMTPDataError', 'shop.mail.deliver_' || cause,
    CASE span.seconds
        WHEN 0 THEN to_timestamp(0)
        ELSE to_timestamp(floor(date_part('epoch', now()) / span.seconds - number) * span.seconds)
    END,
    5, now() - interval '3 days', now(), 42, 85
FROM
    (VALUES (0, 1), (60, 3 * 1440), (3600, 90 * 24)) AS span (seconds, numbers),
    generate_series(1, span.numbers) AS number, generate_series(1, 10) AS cause
"""

# The last 200 batches are unfinished: a hundred, and one inside each. Of the others, each seventh has failures.
FILL_BATCHES = """
INSERT INTO skipqueue_batch (id, name, parent_id, callbacks, created_at, finished_at, completed, failed, discarded)
SELECT
    n, 'import ' || n, CASE WHEN n > number - 100 THEN n - 100 END, '{}', now() - (number - n) * interval '700 seconds',
    CASE WHEN is_finished THEN now() - (number - n) * interval '600 seconds' END,
    CASE WHEN is_finished THEN 90 END, CASE WHEN is_finished THEN (n %% 7 = 0)::integer * 10 END,
    CASE WHEN is_finished THEN 0 END
FROM
    (SELECT 1 + %(jobs)s / 1000 AS number) AS batches, generate_series(1, number) AS n,
    LATERAL (SELECT n <= number - 200 AS is_finished) AS life
"""

# Blocked jobs: some wait for limits (1,000 keys), some for rates (100 keys), some for a failed job in 50 sequences.
FILL_BLOCKED = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, gate, run_after, enqueued_at, finished_at, attempts, lease, limit_key,
    limit_kind, capacity, rate_key, rate_interval, rate_burst
)
SELECT
    'imports', 'shop.jobs.push', '[]', jsonb_build_object('account_id', n), status,
    CASE WHEN status = 'blocked' THEN CASE kind WHEN 'rate' THEN 'rate' ELSE 'limit' END END,
    now() - n * interval '1 second',
    now() - n * interval '1 second', CASE WHEN status = 'failed' THEN now() END,
    (status = 'failed')::integer, (status = 'failed')::integer,
    CASE kind
        WHEN 'limit' THEN 'limit:shop.jobs.push account_id=' || n %% 1000
        WHEN 'sequence' THEN 'sequence:shop.jobs.book account_id=' || n / 4 %% 50
    END,
    CASE kind WHEN 'limit' THEN 'concurrency' WHEN 'sequence' THEN 'halting' END,
    CASE kind WHEN 'limit' THEN 2 WHEN 'sequence' THEN 1 END,
    CASE kind WHEN 'rate' THEN 'rate:shop.jobs.push account_id=' || n %% 100 END,
    CASE kind WHEN 'rate' THEN 60.0 END, CASE kind WHEN 'rate' THEN 1 END
FROM
    generate_series(1, %(jobs)s / 50) AS n,
    LATERAL (
        SELECT CASE WHEN n <= 200 THEN 'sequence' WHEN n %% 5 = 0 THEN 'rate' ELSE 'limit' END AS kind
    ) AS gate,
    LATERAL (
        SELECT CASE WHEN kind = 'sequence' AND n %% 4 = 0 THEN 'failed' ELSE 'blocked' END AS status
    ) AS life
"""

FILL_SCHEDULES = """
INSERT INTO skipqueue_schedule (name, task, interval, next_run_at, fire_at)
SELECT
    'schedule ' || n, 'shop.jobs.build_report', interval '5 minutes', now() + n * interval '1 second',
    now() + n * interval '1 second'
FROM generate_series(1, 200) AS n
"""

# Entries in Django's log about actions of operators, most of them long ago.
FILL_LOG = """
INSERT INTO django_admin_log (
    action_time, object_id, object_repr, action_flag, change_message, content_type_id, user_id
)
SELECT
    now() - (%(entries)s - n) * interval '1 second', 1 + n %% 100000, 'shop.jobs.refund', 2, 'Retried.',
    content_type.id, %(user_id)s
FROM
    generate_series(1, %(entries)s) AS n,
    (SELECT id FROM django_content_type WHERE app_label = 'django_skipqueue' AND model = 'job') AS content_type
"""

# Two running jobs: an action on many jobs, and a search of all jobs.
FILL_ACTIONS = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, metadata, status, attempts, run_after, enqueued_at, locked_at, locked_by, started_at
)
SELECT
    'default', %(task)s, '[]',
    jsonb_build_object('query', query, 'site', 'admin', 'user_id', 1, 'user', 'admin', 'action', action) || number,
    jsonb_build_object('progress', progress), 'running', 1, now(), now(), now(), '', now()
FROM
    (
        VALUES
        (
            'retry_selected', 'status=failed', '{"number": 12000}'::jsonb,
            '{"newest": 9000, "edges": [null, null], "after": 4000, "changed": 3900, "skipped": 100}'::jsonb
        ),
        (
            'search', 'q=payment_id%%3D7', '{}',
            '{"newest": 9000, "edges": [null, null], "counted": 9000, "looked_at": 8000, "found": [7, 7000]}'
        )
    ) AS calls (action, query, number, progress)
"""
