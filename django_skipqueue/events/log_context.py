"""The context of a log record: the worker of this process, and the job whose attempt writes the record.

Invariant: a thread or coroutine that runs no attempt has no job.
"""

from contextvars import ContextVar
from typing import Any

from ..values.records import ClaimedJob

worker: dict[str, Any] = {"worker_id": None, "worker_name": None}
"""The worker of this process; `None` in every other process, such as a supervisor."""

job: ContextVar[ClaimedJob | None] = ContextVar("skipqueue_job", default=None)
"""The job of the attempt that runs in this thread or coroutine. The executor sets it."""


def identify(worker_id: str, worker_name: str) -> None:
    """Set the worker of this process, for all its records."""
    worker.update(worker_id=worker_id, worker_name=worker_name)
