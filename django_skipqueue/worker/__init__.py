"""One worker process: a control loop that claims jobs, has them run, and settles what came of them.

Read `worker` first, then `in_flight`, `round_trips` and `pending_outcomes`.
"""
