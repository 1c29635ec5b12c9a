"""Breaks workers, machines, connections and PostgreSQL under load, and proves from a witness that no promise broke.

Invariant: the witness is written by triggers and by the tasks themselves, in the database; nothing is taken on trust
from the worker.
"""

WORKER_TIMEOUT = 4.0
"""Seconds: short, so that a dead machine is seen within a scenario."""
