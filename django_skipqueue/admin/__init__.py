"""The job queue in Django's admin: see jobs, archived jobs, queues and workers, and act on them.

Invariant: every write goes through the verbs of the queue, or deletes jobs that are not running; nothing is edited. A
page reads the job table by an index, or at most `WINDOW_SIZE` rows of it.
"""

from .archive.archived_job_admin import ArchivedJobAdmin
from .batches.batch_admin import BatchAdmin
from .jobs.job_admin import JobAdmin
from .queues.queue_admin import QueueAdmin
from .schedules.schedule_admin import ScheduleAdmin
from .workers.worker_admin import WorkerAdmin

__all__ = ["ArchivedJobAdmin", "BatchAdmin", "JobAdmin", "QueueAdmin", "ScheduleAdmin", "WorkerAdmin"]
