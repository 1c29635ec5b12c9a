"""The interface to unique keys, which an enqueue and a manual retry use. The part `unique` implements it."""

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
    """A waiting job that holds the unique key of a call, and got the call's arguments."""

    unique_key: str
    id: int
    status: str
    gate: str | None
    run_after: datetime
    enqueued_at: datetime
    delay: float
    """Seconds until the job is due."""


class UniqueKeys(Protocol):
    """The functions that the part for unique keys implements in one module."""

    def enqueue_unique(
        self,
        store: "Store",
        spec: JobSpec,
        values: Mapping[str, Any],
        calls: Sequence[EncodedCall],
        *,
        announce: Callable[..., object],
    ) -> DeferredJobs:
        """Insert jobs, some of which have unique keys. Calls `announce` with each batch of new jobs."""

    def replace_waiting(
        self, store: "Store", values: Mapping[str, Any], calls: Sequence[EncodedCall]
    ) -> Sequence[ReplacedJob]:
        """For each call whose unique key a waiting job holds, give this job the arguments and due time of the call."""

    def holder(self, store: "Store", spec: JobSpec, key: str) -> "Job | None":
        """The job that holds this unique key; `None` if the key is free."""

    def held(self, alias: str, keys: Collection[str]) -> Mapping[str, int]:
        """For each of these keys that a job in this database holds, the id of that job."""

    def free_unique_keys(self, store: "Store", keys: Sequence[str]) -> Sequence[str]:
        """Free the keys whose jobs are finished and which have expired. Returns the freed keys."""

    def unique_keys_of(self, store: "Store", ids: Sequence[int]) -> Sequence[str]: ...

    def taken_by(self, alias: str, job_ids: Sequence[int]) -> UniqueKeyTaken:
        """Make the exception for a call whose unique key is held by one of these jobs."""


@contextmanager
def explained_deadlock() -> Iterator[None]:
    """If PostgreSQL reports a deadlock in this block, raise `UniqueKeyDeadlock` instead, which explains it."""
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise UniqueKeyDeadlock from error
        raise


def unique_keys() -> UniqueKeys:
    """The functions of the part for unique keys. Called only if that part is installed; otherwise no job has a key."""
    functions: UniqueKeys = next(part.unique_keys for part in installed_parts() if part.unique_keys is not None)
    return functions
