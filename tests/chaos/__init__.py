"""Breaks workers, machines, connections and PostgreSQL under load, and checks from recorded rows that no promise broke.

Invariant: the record (the "witness") is written by triggers and by the tasks themselves, in the database; no statement
of the worker is trusted.
"""

WORKER_TIMEOUT = 4.0
"""The setting WORKER_TIMEOUT, in seconds: short, so that a dead machine is noticed within a scenario."""
