"""The two tables as Django sees them: `Job`, one request to run a task, and `Worker`, one process that runs them."""

from .job import Job
from .status import ALIVE, FINISHED, WAITING, Status
from .worker import Worker

__all__ = ["ALIVE", "FINISHED", "WAITING", "Job", "Status", "Worker"]
