"""The verbs of the queue: each is one statement of `sql.py`, on one connection, and returns what it changed.

The only user of `sql.py`. Nothing here decides what becomes of a job; it writes what was decided elsewhere.
"""

from .jobs import BATCH, JobManager, JobQuerySet
from .workers import WorkerManager, WorkerQuerySet

__all__ = ["BATCH", "JobManager", "JobQuerySet", "WorkerManager", "WorkerQuerySet"]
