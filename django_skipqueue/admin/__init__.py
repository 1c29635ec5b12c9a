"""The job queue in Django's admin: see jobs and workers, and act on jobs.

Invariant: every write goes through the verbs of the queue, or deletes jobs that are not running; nothing is edited. No
page reads more of the job table than what an index, or one window of `WINDOW_SIZE` rows, gives it.
"""

from .jobs.job_admin import JobAdmin
from .workers.worker_admin import WorkerAdmin

__all__ = ["JobAdmin", "WorkerAdmin"]
