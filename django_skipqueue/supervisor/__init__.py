"""The supervisor: the parent process that starts workers, replaces dead workers, and recovers or releases their jobs.

It runs no user code in its main thread.
"""
