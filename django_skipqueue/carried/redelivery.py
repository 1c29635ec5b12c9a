"""Tells whether a job that the broker delivers again still has to run.

After a lost connection the broker delivers again what was not acknowledged, and that is mostly over: its outcome was on
its way, and is written by now.

Invariant: in doubt the job runs.
"""

from django.db import Error

from ..runtime.own_connections import dedicated_connection, guard
from ..store import Store
from ..values.records import LeaseRef


def is_over(ref: LeaseRef, alias: str) -> bool:
    """Whether the lease has ended. `False` too if the database cannot say: Celery's workers need not reach it."""
    try:
        with dedicated_connection(alias) as connection:
            guard(connection, alias)
            return bool(Store(alias).lost_leases([ref]))
    except Error:
        return False
