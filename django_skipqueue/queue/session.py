"""Read and change settings of the current database session or transaction, such as timeouts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors

if TYPE_CHECKING:
    from .store import Store

ROLLBACK_ATTEMPTS = 5
"""How often a rollback to a savepoint is attempted if its statement timeout cancels it."""


# Sent by first_in_queues, pages, the doctor and metrics. Sets the statement timeout of the current transaction, and
# makes PostgreSQL walk indexes in one process, without compiling the statement. Otherwise the planner would choose
# badly in a table of millions of rows. It would expect a costly statement and compile it, which takes a hundred times
# as long as a few index probes. For a window of jobs, it would expect enough rows to read the whole table, in
# several processes. For the jobs of one cause of failures, it would expect few jobs, fetch all of them by a bitmap and
# sort them, instead of walking the index until enough are counted.
LIMIT_STATEMENTS = """
SELECT
    set_config('statement_timeout', %(timeout)s, true),
    set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)
"""

# Sent by parts that move many rows. Sets for how long statements of the current transaction wait for a lock.
SET_LOCK_TIMEOUT = """
SELECT set_config('lock_timeout', %(timeout)s, true)
"""

# Sent by the doctor and by reindex. Returns the process id of the server process that runs this statement.
BACKEND_PID = "SELECT pg_backend_pid()"

# Sent by supervisors. Returns for how long their statements wait for a lock; 0 if a pooler has ignored the connection's
# options.
LOCK_TIMEOUT = "SELECT current_setting('lock_timeout')"

# Sent by workers and supervisors, on a connection that no pooler shares. Sets for how long a transaction may be open
# before the server ends its session. No other timeout ends a transaction whose client is gone.
BOUND_TRANSACTIONS = """
SELECT set_config('transaction_timeout', %(timeout)s, false)
"""

# Sent by workers, on a connection that no pooler shares. Makes PostgreSQL plan each prepared statement only once. By
# default it would plan a claim again for each of the first calls, which takes 1 ms, as long as the claim itself.
PLAN_ONCE = "SET plan_cache_mode = force_generic_plan"

# Sent by workers after a slow statement, on a connection that has sent PLAN_ONCE. Makes PostgreSQL plan each statement
# once more, for the table as it is now.
DROP_PLANS = "DISCARD PLANS"


def limit_statements(store: "Store", seconds: float) -> None:
    """Set the statement timeout of the current transaction, and make its statements walk indexes in one process."""
    store.rows(LIMIT_STATEMENTS, {"timeout": f"{seconds:.3f}s"})


@contextmanager
def short_transaction(store: "Store", seconds: float) -> Iterator[None]:
    """A transaction or savepoint with a statement timeout. At the end, both are rolled back."""
    connection = store.connection
    if not connection.in_atomic_block:
        with transaction.atomic(using=store.alias):
            limit_statements(store, seconds)
            yield
            transaction.set_rollback(True, using=store.alias)
        return
    savepoint: Any = connection.savepoint()
    try:
        limit_statements(store, seconds)
        yield
    finally:
        _roll_back_to(connection, savepoint)


def _roll_back_to(connection: BaseDatabaseWrapper, savepoint: str) -> None:
    """Roll back to the savepoint, in several attempts if the server is slow.

    The statement timeout applies to the rollback too. An atomic block of Django would give up after one attempt, and
    would then refuse all further queries of the transaction.
    """
    connection.needs_rollback = False
    for attempts_left in reversed(range(ROLLBACK_ATTEMPTS)):
        try:
            connection.savepoint_rollback(savepoint)
        except OperationalError as error:
            if not attempts_left or not isinstance(error.__cause__, errors.QueryCanceled):
                raise
        else:
            connection.savepoint_commit(savepoint)
            return


def backend_pid(store: "Store") -> int:
    """The process id of the server process that runs this statement. Behind a pooler it may differ each time."""
    ((pid,),) = store.rows(BACKEND_PID)
    return int(pid)


def lock_timeout(store: "Store") -> str:
    """The lock timeout of this connection, such as `5s`; `0` means that statements wait forever."""
    ((timeout,),) = store.rows(LOCK_TIMEOUT)
    return str(timeout)


def bound_transactions(store: "Store", seconds: float) -> None:
    """Make the server end this session if one of its transactions takes longer than this. Needs PostgreSQL 17.

    For a connection that no pooler shares.
    """
    store.rows(BOUND_TRANSACTIONS, {"timeout": f"{seconds:.0f}s"})


def plan_statements_once(store: "Store") -> None:
    """Make PostgreSQL plan each prepared statement of this connection once, for all values of its parameters.

    For a connection that no pooler shares.
    """
    store.execute(PLAN_ONCE)


def drop_plans(store: "Store") -> None:
    """Make PostgreSQL forget the plans of this connection's prepared statements."""
    store.execute(DROP_PLANS)
