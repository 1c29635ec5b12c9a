"""Breaks workers, machines, connections and PostgreSQL under load, and checks by recorded rows that all promises hold.

Invariant: triggers in the database and the tasks themselves write the record (the "witness"), not the worker, because
the worker is under test.
"""

WORKER_TIMEOUT = 4.0
"""The setting WORKER_TIMEOUT, in seconds: short, so that a dead machine is noticed within a scenario."""
