"""A job queue in the PostgreSQL database that a Django project already runs.

Users import from this module. It loads no model, so that it can be imported while apps are still loading.
"""

from .exceptions import SkipQueueError
from .jobs.context import JobContext
from .jobs.decorator import job, with_options
from .jobs.task import Task
from .jobs.task_call import TaskCall
from .parts.batches.batch import Batch
from .parts.batches.chain import Chain, chain
from .parts.limits.options import by, limit
from .parts.rates.options import rate
from .parts.schedules.decorator import periodic
from .parts.unique.options import unique_by
from .values.outcomes import Discard, Retry, Snooze
from .values.version import VERSION

__version__ = VERSION

__all__ = [
    "Batch",
    "Chain",
    "Discard",
    "JobContext",
    "Retry",
    "SkipQueueError",
    "Snooze",
    "Task",
    "TaskCall",
    "__version__",
    "by",
    "chain",
    "job",
    "limit",
    "periodic",
    "rate",
    "unique_by",
    "with_options",
]
