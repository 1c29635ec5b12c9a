"""The job queue in Django's admin: see jobs and workers, and act on jobs.

Invariant: every write goes through the verbs of the queue, or deletes jobs that are not running; nothing is edited. A
page reads the job table by an index, or at most `WINDOW_SIZE` rows of it.
"""

from .jobs.job_admin import JobAdmin
from .workers.worker_admin import WorkerAdmin

__all__ = ["JobAdmin", "WorkerAdmin"]
