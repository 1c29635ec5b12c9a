"""One worker process. Its control loop claims jobs, has them run in other threads, and writes their outcomes.

Read `worker` first, then `in_flight`, `exchange` and `outcomes`.
"""
