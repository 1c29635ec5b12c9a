"""The job queue in Django's admin: see jobs, archived jobs, queues and workers, and act on them.

Invariant: every write goes through the verbs of the queue, or deletes jobs that are not running; no row is edited. A
page reads the job table by an index, or at most `WINDOW_SIZE` rows of it.
"""

from .console.admin.jobs.job_admin import JobAdmin
from .console.admin.queues import QueueAdmin
from .console.admin.workers import WorkerAdmin
from .parts.archive.admin import ArchivedJobAdmin
from .parts.batches.admin import BatchAdmin
from .parts.schedules.admin import ScheduleAdmin

__all__ = [
    "ArchivedJobAdmin",
    "BatchAdmin",
    "JobAdmin",
    "QueueAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
