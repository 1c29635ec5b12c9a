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

from .admit import *
from .claim import *
from .enqueue import *
from .leases import *
from .notify import *
from .operate import *
from .prune import *
from .recover import *
from .release import *
from .settle import *
from .workers import *
