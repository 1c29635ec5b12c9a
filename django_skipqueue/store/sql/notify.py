"""Notify workers and supervisors, and listen for notifications."""

# enqueue, settle, retry, run_now, release, recover, admit: notifies the workers that listen.
# enqueue, settle, retry, postpone: notifies the supervisors of a scheduled job that is due soon.
NOTIFY = """
SELECT pg_notify(%(channel)s, %(payload)s)
"""

# The same after a commit, in a transaction of its own. It does not wait for the disk: a crash of the server that loses
# the notification also disconnects everyone who listens.
NOTIFY_ALONE = """
SELECT pg_notify(%(channel)s, %(payload)s)
FROM set_config('synchronous_commit', 'off', true)
"""

# supervisor, and a worker whose supervisor is silent: to be notified when a queue gets jobs. One channel for all
# queues; the payload has the queue's name and the number of jobs.
LISTEN = "LISTEN skipqueue"

# worker: to be notified of nothing any more, when its supervisor is back.
UNLISTEN = "UNLISTEN *"

# worker, on a connection that no pooler shares: to plan each prepared statement once. Without it PostgreSQL plans a
# statement with each call until it has compared the plans: 1 ms for a claim, which takes another.
PLAN_ONCE = "SET plan_cache_mode = force_generic_plan"

# worker, on such a connection, after a slow statement: to plan them once more, for the table as it is now.
PLAN_ANEW = "DISCARD PLANS"

# supervisor: to be notified when a job is scheduled that is due before the next poll. The payload is empty.
LISTEN_SCHEDULED = "LISTEN skipqueue_scheduled"
