"""A job queue in the PostgreSQL database that a Django project already runs.

Users import from this module. It loads no model, so that it can be imported while apps are still loading.
"""

from .admission.options import by, limit
from .admission.rates import rate
from .batches.batch import Batch
from .batches.call import TaskCall
from .batches.chain import Chain, chain
from .exceptions import SkipQueueError
from .periodic.decorator import periodic
from .tasks.context import JobContext
from .tasks.decorator import job
from .tasks.task import Task
from .tasks.unique import unique_by
from .tasks.with_options import with_options
from .values.outcomes import Discard, Retry, Snooze

__version__ = "0.1.0"

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
