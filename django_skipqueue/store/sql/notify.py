"""Waking those who wait for jobs."""

# enqueue, settle, retry, run_now, release, recover, admit: wakes the workers that listen. enqueue, settle, retry,
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
