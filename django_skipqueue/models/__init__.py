"""The two tables as Django sees them: `Job`, one request to run a task, and `Worker`, one process that runs them."""

from .job import Job
from .status import FINISHED, UNFINISHED, WAITING, Status
from .worker import Worker

__all__ = ["FINISHED", "UNFINISHED", "WAITING", "Job", "Status", "Worker"]
