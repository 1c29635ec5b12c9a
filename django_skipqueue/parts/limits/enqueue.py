"""Insert a job that has a limit, and admit it if it can be."""

from ...queue.fragments import INSERT_JOB
from .admit import ADMIT_WITHOUT_WAITING
from .lone import ADMIT_LONE, LOCK_KEY

_ADMIT = ADMIT_LONE.replace("%(id)s", "split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint").rstrip()

# enqueue of a job with a limit and without a unique key or a rate, outside of a transaction → as ENQUEUE_AND_NOTIFY, in
# one message: the INSERT and its commit; after it, in another transaction, the admission, and the NOTIFY if there is
# one. The last result has a row if the job is admitted.
ENQUEUE_AND_ADMIT = f"""
BEGIN;
{INSERT_JOB}
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
{ADMIT_WITHOUT_WAITING};
{LOCK_KEY};
{_ADMIT}, pg_notify('skipqueue', queue_name)
""".replace("%(key)s", "%(limit_key)s")
