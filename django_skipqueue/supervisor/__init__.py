"""The parent process: starts workers, replaces those that die, and recovers or releases their jobs.

It runs no user code in its main thread.
"""
