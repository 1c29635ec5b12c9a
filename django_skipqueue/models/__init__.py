"""The Django models of all tables.

`Job` is one request to run a task, `Queue` a queue that was paused or limited, `Worker` a process that runs jobs, and
`WorkerRequest` an operator's request to such a process. All other models belong to parts.
"""

from ..parts.alerts.models import Incident
from ..parts.archive.models import ArchivedJob
from ..parts.batches.models import Dependency, JobBatch, PrunedOfBatch
from ..parts.history.models import Deployment, FailureRollUp, RollUp, RollUpProgress
from ..parts.rates.models import RateBucket
from ..parts.schedules.models import Schedule
from ..parts.steps.models import JobChild, JobSignal, JobStep
from .job import Job
from .queue import Queue
from .status import FINISHED, UNFINISHED, WAITING, Status
from .worker import Worker, WorkerRequest

__all__ = [
    "FINISHED",
    "UNFINISHED",
    "WAITING",
    "ArchivedJob",
    "Dependency",
    "Deployment",
    "FailureRollUp",
    "Incident",
    "Job",
    "JobBatch",
    "JobChild",
    "JobSignal",
    "JobStep",
    "PrunedOfBatch",
    "Queue",
    "RateBucket",
    "RollUp",
    "RollUpProgress",
    "Schedule",
    "Status",
    "Worker",
    "WorkerRequest",
]
