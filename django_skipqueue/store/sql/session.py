"""Read and set what belongs to this connection's session or transaction."""

# first_in_queues, pages, doctor, metrics: sets the statement timeout of the current transaction, and has PostgreSQL
# walk indexes in one process. With millions of rows the planner expects so many that it compiles a probe of an index,
# which takes a hundred times as long as the probe; and it expects so many of a window, whose end it cannot judge, that
# it reads the whole table instead, in several processes. Of a cause it expects so few jobs that it fetches all of them
# by a bitmap, and sorts them, instead of walking the index as far as the count goes.
LIMIT_STATEMENTS = """
SELECT
    set_config('statement_timeout', %(timeout)s, true),
    set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)
"""

# roll-ups, archive: sets the time for which statements of the current transaction wait for a lock.
SET_LOCK_TIMEOUT = """
SELECT set_config('lock_timeout', %(timeout)s, true)
"""

# doctor, reindex → the process id of the server's process that runs this statement.
BACKEND_PID = "SELECT pg_backend_pid()"

# supervisor → the time for which its statements wait for a lock; 0 if a pooler has ignored the connection's options.
LOCK_TIMEOUT = "SELECT current_setting('lock_timeout')"

# worker, supervisor, on a connection that no pooler shares: sets the time after which the server ends the session of a
# transaction that is still open. It ends a transaction whose client is gone, where no other timeout does.
BOUND_TRANSACTIONS = """
SELECT set_config('transaction_timeout', %(timeout)s, false)
"""

# worker, on a connection that no pooler shares: to plan each prepared statement once. Without it PostgreSQL plans a
# statement with each call until it has compared the plans: 1 ms for a claim, which takes another.
PLAN_ONCE = "SET plan_cache_mode = force_generic_plan"

# worker, on such a connection, after a slow statement: to plan them once more, for the table as it is now.
PLAN_ANEW = "DISCARD PLANS"
