"""What log records say about where they were written: the worker process, the running job, and the database.

A record that is not written during an attempt has no job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..conf import chosen_or_all, settings
from ..values.records import ClaimedJob

worker: dict[str, Any] = {"worker_id": None, "worker_name": None}
"""The worker that this process is. Both values are `None` in every other process, such as a supervisor."""

job: ContextVar[ClaimedJob | None] = ContextVar("skipqueue_job", default=None)
"""The job whose attempt runs in this thread or coroutine. The executor sets it."""

database: ContextVar[str | None] = ContextVar("skipqueue_log_database", default=None)
"""The alias of the database that this thread or coroutine works for. The executor sets it."""

served: list[str] = []
"""A list with the alias of the database that this supervisor or worker serves; empty in every other process."""


def identify(worker_id: str, worker_name: str) -> None:
    worker.update(worker_id=worker_id, worker_name=worker_name)


def serve(alias: str) -> None:
    """Set the database of all records of this process, and of the worker processes that it forks."""
    served[:] = [alias]


@contextmanager
def about(alias: str | None) -> Iterator[None]:
    """Set the database of all records that are written in this block. `None` changes nothing."""
    token = database.set(alias or database.get())
    try:
        yield
    finally:
        database.reset(token)


def named_database() -> dict[str, str]:
    """Return the field `database` for a record; empty if only one database holds a queue, or if it is unknown."""
    if not settings.serves_several:
        return {}
    alias = database.get()
    candidates = [alias] if alias else served or chosen_or_all()
    return {"database": candidates[0]} if len(candidates) == 1 else {}
