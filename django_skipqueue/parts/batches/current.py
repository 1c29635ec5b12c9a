"""The batch that jobs are added to: that of the innermost `with` block of this thread, or of this asynchronous task.

Invariant: a job joins a batch only in the transaction in which the batch is made, or kept from being finished.
"""

from contextvars import ContextVar
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from ...exceptions import InvalidOption
from ...values.records import JobSpec


class CurrentBatch(NamedTuple):
    id: int
    connection: BaseDatabaseWrapper
    """The connection whose transaction has the batch."""


current_batch: ContextVar[CurrentBatch | None] = ContextVar("current_batch", default=None)


def joined_database() -> str | None:
    """The alias of the database of this batch; `None`: there is no `with` block."""
    current = current_batch.get()
    alias: str | None = current and current.connection.alias
    return alias


def in_current_batch(spec: JobSpec, connection: BaseDatabaseWrapper) -> JobSpec:
    """The spec with the id of the batch whose `with` block this is in, unless it names a batch itself.

    Raises `InvalidOption` if the job would be inserted in another transaction than the batch: it might run, or be taken
    back, alone.
    """
    current = current_batch.get()
    if current is None or "batch_id" in spec.columns:
        return spec
    if connection.alias != current.connection.alias:
        raise InvalidOption(
            f"A job in the database {connection.alias!r} cannot belong to a batch in {current.connection.alias!r}. "
            "Defer it outside of the with block."
        )
    if connection is not current.connection:
        raise InvalidOption(
            "A job of a batch must be deferred in the thread of its with block: another thread has a transaction of "
            "its own. Put the with block into the function that runs in that thread."
        )
    return spec.with_columns(batch_id=current.id)
