"""The PostgreSQL a Django project already runs, as its job queue.

This module is what users import; it loads no model, so that it can be imported while apps are still loading.
"""

from .context import JobContext
from .decorator import job
from .exceptions import SkipQueueError
from .outcomes import Discard, Retry, Snooze
from .tasks import Task

__version__ = "0.1.0"

__all__ = ["Discard", "JobContext", "Retry", "SkipQueueError", "Snooze", "Task", "__version__", "job"]
