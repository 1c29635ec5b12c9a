"""How jobs are run: one supervisor, its worker processes, and in each a control loop over a pool.

Read in this order: supervisor, maintenance, worker, wakeup, pool, executor.
"""
