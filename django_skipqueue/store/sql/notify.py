"""Notify workers and supervisors, and listen for notifications."""

# enqueue, settle, retry, run_now, release, recover, admit, resume: notifies the workers that listen.
# enqueue, settle, retry, postpone: notifies the supervisors of a scheduled job that is due soon.
# pause, resume, a request of a worker: notifies the supervisors.
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

# supervisor: to be notified when a job is scheduled that is due before the next poll, when a queue was paused or
# resumed, and when something is requested of a worker. The payload says which.
LISTEN_AS_SUPERVISOR = "LISTEN skipqueue_supervisors"
