"""The job queue in Django's admin: see jobs and workers, and act on jobs.

Invariant: every write goes through the verbs of the queue, or deletes jobs that are not running; nothing is edited. No
page reads more of the job table than an index, or the first `orders.LOOK` rows of one, gives it.
"""

from .jobs import JobAdmin
from .workers import WorkerAdmin

__all__ = ["JobAdmin", "WorkerAdmin"]
