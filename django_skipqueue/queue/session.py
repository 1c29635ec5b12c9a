"""Read and set what belongs to this connection's session or transaction, such as its timeouts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import transaction

if TYPE_CHECKING:
    from .store import Store


# first_in_queues, pages, doctor, metrics: sets the statement timeout of the current transaction, and has PostgreSQL
# walk indexes in one process. With millions of rows the planner expects a costly statement and compiles each index
# probe, which takes a hundred times as long as the probe. The planner cannot judge the end of a window: it expects so
# many rows that it reads the whole table, in several processes. For a cause the planner expects few jobs: it fetches
# all of them by a bitmap and sorts them, instead of walking the index until enough are counted.
LIMIT_STATEMENTS = """
SELECT
    set_config('statement_timeout', %(timeout)s, true),
    set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)
"""

# parts that move many rows: sets the time for which statements of the current transaction wait for a lock.
SET_LOCK_TIMEOUT = """
SELECT set_config('lock_timeout', %(timeout)s, true)
"""

# doctor, reindex → the process id of the server's process that runs this statement.
BACKEND_PID = "SELECT pg_backend_pid()"

# supervisor → the time for which its statements wait for a lock; 0 if a pooler has ignored the connection's options.
LOCK_TIMEOUT = "SELECT current_setting('lock_timeout')"

# worker, supervisor, on a connection that no pooler shares: sets the time after which the server ends the session of a
# transaction that is still open. No other timeout ends a transaction whose client is gone.
BOUND_TRANSACTIONS = """
SELECT set_config('transaction_timeout', %(timeout)s, false)
"""

# worker, on a connection that no pooler shares: to plan each prepared statement once. Without it PostgreSQL plans a
# statement with each call until it has compared the plans: 1 ms for a claim, which takes another.
PLAN_ONCE = "SET plan_cache_mode = force_generic_plan"

# worker, on a connection with PLAN_ONCE, after a slow statement: to plan each statement once more, for the table as it
# is now.
DROP_PLANS = "DISCARD PLANS"


def limit_statements(store: "Store", seconds: float) -> None:
    """Set the statement timeout of the current transaction, and have its statements walk indexes in one process."""
    store.rows(LIMIT_STATEMENTS, {"timeout": f"{seconds:.3f}s"})


@contextmanager
def short_transaction(store: "Store", seconds: float) -> Iterator[None]:
    """A transaction, or a savepoint, with a statement timeout that ends with it, since it is rolled back."""
    with transaction.atomic(using=store.alias):
        limit_statements(store, seconds)
        yield
        transaction.set_rollback(True, using=store.alias)


def backend_pid(store: "Store") -> int:
    """The process id of the server's process that runs this statement. A pooler may choose another each time."""
    ((pid,),) = store.rows(BACKEND_PID)
    return int(pid)


def lock_timeout(store: "Store") -> str:
    """The setting of this connection, such as `5s`; `0`: statements wait for ever."""
    ((timeout,),) = store.rows(LOCK_TIMEOUT)
    return str(timeout)


def bound_transactions(store: "Store", seconds: float) -> None:
    """Have the server end this session if one of its transactions takes longer. Needs PostgreSQL 17.

    For a connection that no pooler shares.
    """
    store.rows(BOUND_TRANSACTIONS, {"timeout": f"{seconds:.0f}s"})


def plan_once(store: "Store") -> None:
    """Have this connection plan each prepared statement once, for all values of its parameters.

    For a connection that no pooler shares.
    """
    store.execute(PLAN_ONCE)


def drop_plans(store: "Store") -> None:
    """Have this connection forget the plans of its prepared statements."""
    store.execute(DROP_PLANS)
