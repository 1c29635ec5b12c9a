"""Every statement of the queue, as a named literal; a file for each verb.

Above each: who calls it, what it promises, which index it uses. Put values for the `%(…)s`, and
'queued' for `{status}`, and it runs in psql.

Rules, kept by all of them:

- A status is written as a literal: a parameter could not use a partial index under a generic plan.
- Rows are chosen by a limited, locking `SELECT` in a `MATERIALIZED` CTE and updated by `id = ANY (ARRAY (SELECT …))`,
  or by ctid: the choice is made once, so that never more than the limit is taken, and the planner expects few ids, so
  that it always looks them up by the primary key. Joined instead, a generic plan expects a tenth of the table and reads
  all of it. `PRUNE` deletes what `EXPIRED` has locked in the same transaction.
- Everything except `SETTLE`, `RELEASE` and `HEARTBEAT_JOB`, which own their rows by lease, skips rows that another
  transaction has locked.
- A batch of values travels as one JSON document, or as arrays out of a scalar subquery: PostgreSQL expects a hundred
  rows of the one and ten of the other, whatever their length, and looks each up.
- Which status a job enters is decided in `sql.gates` alone: `entering` puts that in the place of `{status}`.
- What an operator does is noted in the row, by the statement that does it: in `operations`, the newest 50.
- The only clock is the database's.
"""

from .admit import ADMIT, NEXT_DUE
from .claim import CLAIM, FIRST_IN_QUEUES, QUEUES_WITH_JOBS, SET_STATEMENT_TIMEOUT
from .enqueue import ENQUEUE, ENQUEUE_MANY, ENQUEUE_MANY_UNIQUE, UNIQUE_KEY_HOLDERS
from .leases import HEARTBEAT_JOB, LOCKED_ROWS, LOST_LEASES, WORKER_HAS_JOBS
from .notify import LISTEN, LISTEN_SCHEDULED, NOTIFY, NOTIFY_ALONE
from .operate import CANCEL, DISCARD, POSTPONE, RETRY, RUN_NOW
from .prune import EXPIRED, PRUNE
from .recover import RECOVER
from .release import RELEASE, RELEASE_ORPHANS
from .settle import KEEP_ERRORS, QUEUES_OF, SETTLE
from .workers import DELETE_WORKERS, HEARTBEAT_WORKER, HEARTBEAT_WORKERS, HEARTBEATS, PRUNE_WORKERS

__all__ = [
    "ADMIT",
    "CANCEL",
    "CLAIM",
    "DELETE_WORKERS",
    "DISCARD",
    "ENQUEUE",
    "ENQUEUE_MANY",
    "ENQUEUE_MANY_UNIQUE",
    "EXPIRED",
    "FIRST_IN_QUEUES",
    "HEARTBEATS",
    "HEARTBEAT_JOB",
    "HEARTBEAT_WORKER",
    "HEARTBEAT_WORKERS",
    "KEEP_ERRORS",
    "LISTEN",
    "LISTEN_SCHEDULED",
    "LOCKED_ROWS",
    "LOST_LEASES",
    "NEXT_DUE",
    "NOTIFY",
    "NOTIFY_ALONE",
    "POSTPONE",
    "PRUNE",
    "PRUNE_WORKERS",
    "QUEUES_OF",
    "QUEUES_WITH_JOBS",
    "RECOVER",
    "RELEASE",
    "RELEASE_ORPHANS",
    "RETRY",
    "RUN_NOW",
    "SETTLE",
    "SET_STATEMENT_TIMEOUT",
    "UNIQUE_KEY_HOLDERS",
    "WORKER_HAS_JOBS",
]
