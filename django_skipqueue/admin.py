"""The pages of the job queue in Django's admin, where operators see jobs, queues and workers, and act on them.

No page edits a row directly: it calls the queue's operations, such as retry, or deletes jobs that are not running.
A page reads the job table by an index, or reads at most `WINDOW_SIZE` of its rows.
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
