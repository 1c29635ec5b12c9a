"""One worker process: a control loop that claims jobs, runs them, and settles their outcomes.

Read `worker` first, then `in_flight`, `exchange` and `outcomes`.
"""
