"""Insert a job that has a limit, and admit it if it can be."""

from ...queue.fragments import INSERT_JOB, joined
from .admit import ADMIT_WITHOUT_WAITING
from .lone import admitting_lone, locking

# enqueue of a job with a limit and without a unique key or a rate, outside of a transaction → as ENQUEUE_AND_NOTIFY, in
# one message: the INSERT and its commit; after it, in another transaction, the admission, and the NOTIFY if there is
# one. The last result has a row if the job is admitted.
ENQUEUE_AND_ADMIT = joined(
    """
BEGIN;
{insert}
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
{without_waiting};
{lock};
{admit}""",
    insert=INSERT_JOB,
    without_waiting=ADMIT_WITHOUT_WAITING,
    lock=locking(key="%(limit_key)s"),
    admit=admitting_lone(
        id="split_part(current_setting('skipqueue.inserted'), '|', 2)::bigint",
        key="%(limit_key)s",
        more=", pg_notify('skipqueue', queue_name)",
    ),
)
