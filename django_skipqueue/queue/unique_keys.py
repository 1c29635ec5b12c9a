"""The functions for unique keys that enqueues and the manual retry call. The part with unique keys has them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from django.db import OperationalError

from ..exceptions import UniqueKeyDeadlock, UniqueKeyTaken
from ..values.part import installed_parts
from ..values.records import DeferredJobs, EncodedCall, JobSpec

if TYPE_CHECKING:
    from ..models import Job
    from .store import Store


class ReplacedJob(NamedTuple):
    """A job that waits, and has taken the arguments of a call with its unique key."""

    unique_key: str
    id: int
    status: str
    gate: str | None
    run_after: datetime
    enqueued_at: datetime
    delay: float
    """Seconds until the job is due."""


class UniqueKeys(Protocol):
    """The functions of a module."""

    def enqueue_unique(
        self,
        store: "Store",
        spec: JobSpec,
        values: Mapping[str, Any],
        calls: Sequence[EncodedCall],
        *,
        announce: Callable[..., object],
    ) -> DeferredJobs:
        """Insert jobs of which some have unique keys. `announce` is called with each batch of new jobs."""

    def replace_waiting(
        self, store: "Store", values: Mapping[str, Any], calls: Sequence[EncodedCall]
    ) -> Sequence[ReplacedJob]:
        """Give the waiting holders of these calls' keys the arguments, the due time and the limit of the call."""

    def holder(self, store: "Store", spec: JobSpec, key: str) -> "Job | None":
        """The job that holds this key; `None`: the key is free by now."""

    def held(self, alias: str, keys: Collection[str]) -> Mapping[str, int]:
        """Of these keys, those that jobs in this database hold, each with the id of its job."""

    def free_unique_keys(self, store: "Store", keys: Sequence[str]) -> Sequence[str]:
        """Free the keys whose jobs are finished and whose time is over. Returns the freed keys."""

    def unique_keys_of(self, store: "Store", ids: Sequence[int]) -> Sequence[str]: ...

    def taken_by(self, alias: str, job_ids: Sequence[int]) -> UniqueKeyTaken:
        """The exception for a call whose key these jobs hold."""


@contextmanager
def explained_deadlock() -> Iterator[None]:
    """Raise `UniqueKeyDeadlock` in place of PostgreSQL's error, if calls with unique keys were its victim."""
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise UniqueKeyDeadlock from error
        raise


def unique_keys() -> UniqueKeys:
    """The functions of the part with unique keys. Only called if that part is installed: else no job has a key."""
    found: UniqueKeys = next(part.unique_keys for part in installed_parts() if part.unique_keys is not None)
    return found
