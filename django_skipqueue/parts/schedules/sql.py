"""Every statement on the table of schedules, as a literal. The table has a row for each schedule."""

# synchronise → the database's clock, in seconds since the epoch. Reads no table.
CLOCK = "SELECT extract(epoch FROM statement_timestamp())::float8"

# fire → the schedule that is due next, locked until its job is inserted and its next time is written, and the clock; no
# row if none is due, or if others fire those that are. Rows of the code are fired by supervisors with the same
# definition alone. Times are seconds since the epoch. Index: skipqueue_schedule_fire.
DUE = """
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
"""

# fire, after the schedule is locked: a statement sees the snapshot from before its own lock waits → whether its last
# job is unfinished. Index: the primary key of jobs.
IS_UNFINISHED = """
SELECT EXISTS (SELECT FROM skipqueue_job WHERE id = %(id)s AND finished_at IS NULL)
"""

# fire, after the schedule is locked: how long an INSERT may wait for the transaction that holds its unique key.
LIMIT_LOCKS = "SELECT set_config('lock_timeout', %(timeout)s, true)"

# fire: the next time, and the last job if one was enqueued. The row is locked. Index: the primary key.
FIRED = """
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8),
    last_run_at = CASE WHEN %(job_id)s::bigint IS NULL THEN last_run_at ELSE statement_timestamp() END,
    last_job_id = COALESCE(%(job_id)s::bigint, last_job_id),
    skipped_at = CASE WHEN %(is_skipped)s THEN statement_timestamp() ELSE skipped_at END,
    error = ''
WHERE id = %(id)s
"""

# fire: why the schedule could not fire, and when that is tried again. The row is locked. Index: the primary key.
NOTE_ERROR = """
UPDATE skipqueue_schedule
SET error = %(error)s, fire_at = statement_timestamp() + make_interval(secs => %(delay)s)
WHERE id = %(id)s
"""

# next_due → the seconds until the next schedule is due; negative if one is; NULL if there is none.
# Index: skipqueue_schedule_fire.
NEXT = """
SELECT extract(epoch FROM fire_at - statement_timestamp())::float8
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND fire_at IS NOT NULL
    AND (digest = ANY (%(digests)s::text[]) OR source = 'admin')
    AND id <> ALL (%(skipped)s::bigint[])
ORDER BY fire_at, id
LIMIT 1
"""

# synchronise → the names of the schedules that now have the definitions of this process. A definition that is not in
# its row replaces the one there at the start of a supervisor (`has_started` is false), unless it is the one that was
# there before: then a newer deployment has replaced it, and this process is a part of the older one, which is being
# replaced. Later on it replaces one that no supervisor has confirmed for `stale` seconds, as after a rollback. The
# pause, the last run and, if the times are the same, the next one stay. Rows of the admin stay as they are.
# Index: the unique one of names. In the order of names, so that two supervisors never deadlock.
CONFIRM = """
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
"""

# bring_back → the database's clock in seconds since the epoch, and by what each schedule fires that waits for its next
# time, with that time. The table has a row for each schedule.
WAITING = """
SELECT
    extract(epoch FROM statement_timestamp())::float8, id, cron, "interval", timezone,
    extract(epoch FROM next_run_at)::float8
FROM skipqueue_schedule
WHERE paused_at IS NULL AND next_run_at > statement_timestamp() + make_interval(secs => %(margin)s)
"""

# bring_back → the names of the schedules whose next times are now these. No schedule has fired at a time that the clock
# has not reached: it is read after the row is locked, because a supervisor may be firing the schedule. Index: the
# primary key, in its order, so that two supervisors never deadlock.
BRING_BACK = """
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
"""

# synchronise → those of the names that belong to schedules of the admin. Index: the unique one of names.
TAKEN = "SELECT name FROM skipqueue_schedule WHERE name = ANY (%(names)s::text[]) AND source = 'admin'"

# synchronise: notes the schedules that no supervisor has confirmed for `stale` seconds: they are in nobody's code. The
# table has a row for each schedule.
RETIRE = """
UPDATE skipqueue_schedule
SET retired_at = statement_timestamp()
WHERE
    source <> 'admin'
    AND retired_at IS NULL
    AND confirmed_at <= statement_timestamp() - make_interval(secs => %(stale)s)
"""

# synchronise: deletes the schedules that have been in nobody's code for `kept` seconds. The table has a row for each.
REMOVE = """
DELETE FROM skipqueue_schedule
WHERE source <> 'admin' AND retired_at <= statement_timestamp() - make_interval(secs => %(kept)s)
"""

# resume, run_now, plan_anew → the schedule, in the columns of DUE. Index: the primary key.
LOCK = """
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE id = %(id)s
FOR NO KEY UPDATE
"""

# pause → the name, and by whom; no row if it is paused already. Index: the primary key.
PAUSE = """
UPDATE skipqueue_schedule
SET paused_at = statement_timestamp(), paused_by = %(by)s
WHERE id = %(id)s AND paused_at IS NULL
RETURNING name, paused_by
"""

# resume → the name; no row if it is not paused. The row is locked. Index: the primary key.
RESUME = """
UPDATE skipqueue_schedule
SET paused_at = NULL,
    paused_by = '',
    next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8)
WHERE id = %(id)s AND paused_at IS NOT NULL
RETURNING name
"""

# run_now: the job that it has enqueued. The row is locked. Index: the primary key.
RAN = """
UPDATE skipqueue_schedule
SET last_run_at = statement_timestamp(), last_job_id = %(job_id)s
WHERE id = %(id)s
"""

# plan_anew: the next time. The row is locked. Index: the primary key.
PLAN = """
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8), fire_at = to_timestamp(%(next)s::float8), error = ''
WHERE id = %(id)s
"""

# try_again: at its time, without the error. Index: the primary key.
TRY_AGAIN = "UPDATE skipqueue_schedule SET fire_at = next_run_at, error = '' WHERE id = %(id)s"

# late_schedules → the schedules that are late, the latest first. The table has a row for each schedule.
LATE = """
SELECT name, task, extract(epoch FROM statement_timestamp() - next_run_at)::float8, error
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND retired_at IS NULL
    AND next_run_at < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY next_run_at
LIMIT %(limit)s
"""

# schedule_times → the times of the schedules, by their names. Index: the unique one of names.
TIMES = """
SELECT
    name, extract(epoch FROM last_run_at)::float8, extract(epoch FROM next_run_at)::float8,
    CASE
        WHEN paused_at IS NULL AND next_run_at < statement_timestamp()
            THEN extract(epoch FROM statement_timestamp() - next_run_at)
        ELSE 0
    END::float8,
    paused_at IS NOT NULL
FROM skipqueue_schedule
WHERE retired_at IS NULL
ORDER BY name
LIMIT %(limit)s
"""
