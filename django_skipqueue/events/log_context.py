"""The context of a log record: the worker of this process, the job whose attempt writes the record, and its database.

Invariant: a thread or coroutine that runs no attempt has no job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..conf import chosen_or_all, settings
from ..values.records import ClaimedJob

worker: dict[str, Any] = {"worker_id": None, "worker_name": None}
"""The worker of this process; `None` in every other process, such as a supervisor."""

job: ContextVar[ClaimedJob | None] = ContextVar("skipqueue_job", default=None)
"""The job of the attempt that runs in this thread or coroutine. The executor sets it."""

database: ContextVar[str | None] = ContextVar("skipqueue_log_database", default=None)
"""The alias of the database that this thread or coroutine works for. The executor sets it."""

served: list[str] = []
"""The alias of the database that this supervisor or worker serves; empty in every other process."""


def identify(worker_id: str, worker_name: str) -> None:
    worker.update(worker_id=worker_id, worker_name=worker_name)


def serve(alias: str) -> None:
    """Set the database of this process, for all its records, and for the records of the workers that it forks."""
    served[:] = [alias]


@contextmanager
def about(alias: str | None) -> Iterator[None]:
    """Set the database of the records that this thread writes in the block; `None` changes nothing."""
    token = database.set(alias or database.get())
    try:
        yield
    finally:
        database.reset(token)


def named_database() -> dict[str, str]:
    """The field `database` of a record; empty if one database holds the queue, or if the database is unknown."""
    if not settings.serves_several:
        return {}
    alias = database.get()
    known = [alias] if alias else served or chosen_or_all()
    return {"database": known[0]} if len(known) == 1 else {}
