"""Pause and resume queues. A pause ends by itself at `paused_until`, by the database's clock: no row has to change.

`CLAIM` and `QUEUES_WITH_JOBS` have the same condition for a paused queue as the statements here.
"""

# Queue.pause → until when, by whom and why. A pause of a paused queue replaces the first one. Index: the primary key.
PAUSE_QUEUE = """
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
"""

# Queue.resume → the name if the queue was paused. Index: the primary key.
RESUME_QUEUE = """
UPDATE skipqueue_queue
SET paused_at = NULL, paused_until = NULL, paused_by = '', reason = ''
WHERE name = %(name)s AND paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
RETURNING name
"""

# supervisor, whose workers are not called for jobs of these queues → at most `limit` paused queues. The table has a row
# for each queue that was ever paused.
PAUSED_QUEUES = """
SELECT name
FROM skipqueue_queue
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
LIMIT %(limit)s
"""
