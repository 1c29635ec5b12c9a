"""How jobs are run: one supervisor, its worker processes, and in each a control loop over a pool.

Read in this order: supervisor, maintenance, dead_workers, watchdog, worker, own_row, wakeup, pool, executor.
"""
