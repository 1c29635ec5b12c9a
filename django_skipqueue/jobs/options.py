"""The options for enqueuing the jobs of a task.

Invariant: every `Options` object holds values that the table can store.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from inspect import Signature
from typing import Any, TypedDict

from ..conf import Retention, as_time
from ..exceptions import InvalidArguments, InvalidOption
from ..parts.batches.call import AfterFailure
from ..parts.databases.shards import check_shard
from ..parts.limits.options import By, Fair, Limit, fair, names_of, require_arguments
from ..parts.rates.options import Rate
from ..parts.unique.options import UniqueBy, Until, check_on_conflict, check_until, seconds_of
from ..values.backoff import Backoff
from ..values.codec import encode, size_of
from ..values.columns import check_columns, check_key
from ..values.records import EncodedCall, JobReference, JobSpec, OnConflict

UniqueKey = str | Callable[..., str]

ExceptionClasses = type[BaseException] | tuple[type[BaseException], ...]


class JobOptions(TypedDict, total=False):
    """The options that `@job` and `.using()` share. `.using()` ignores one that is `None`."""

    queue_name: str | None
    priority: int | None
    max_attempts: int | None
    unique_key: UniqueKey | None
    unique: UniqueBy | None
    until: Until | None
    on_conflict: OnConflict | None
    timeout: float | None


class UsingOptions(JobOptions, total=False):
    """The options of `.using()`."""

    run_after: datetime | timedelta | None
    database: str | None
    shard_key: str | int | None
    metadata: Mapping[str, Any] | None
    after: Sequence[Any] | None
    after_failure: AfterFailure | None


class RunOptions(JobOptions, total=False):
    """The options that `@job` and `with_options` share."""

    backoff: Backoff | None
    retry_on: ExceptionClasses | None
    discard_on: ExceptionClasses
    redact: Sequence[str]
    concurrency: Limit | None
    sequence: By | None
    fair_by: str | tuple[str, ...] | None
    rate: Rate | None
    shard_by: str | tuple[str, ...] | None


class TaskOptions(RunOptions, total=False):
    """The options of `@job`, except `takes_context`. The docstring of `job` explains them."""

    name: str | None
    database: str | None
    atomic: bool
    retention: Mapping[str, Retention]


MAX_METADATA_BYTES = 4_000
"""Every claim reads the metadata of its jobs."""

RESERVED_METADATA = {"backend", "deferred", "opentelemetry", "schedule", "sentry"}
"""The keys of `django.tasks`, of schedules and of tracers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options with which a task enqueues its jobs, set by `@job` and changed by `.using()`."""

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None`: `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    run_after: datetime | timedelta | None = None
    unique_key: UniqueKey | None = None
    unique: UniqueBy | None = None
    """In place of a `unique_key`: the key is made from arguments."""
    until: Until = "finished"
    """How long a job holds its unique key."""
    on_conflict: OnConflict = "skip"
    """What an enqueue does if a job holds the key."""
    timeout: float | None = None
    """Seconds that an attempt may take, set by `.using()`. That of `@job` is `Task.timeout`, read at each attempt."""
    database: str | None = None
    """`None`: as `SKIPQUEUE["PLACEMENT"]` chooses, or `SKIPQUEUE["DATABASE"]`."""
    shard_by: str | tuple[str, ...] | None = None
    """The arguments that choose the database under the placement `spread`."""
    shard_key: str | int | None = None
    """In place of their values."""
    retention: str | None = None
    """The column, made by `retention_column`."""
    metadata: str = "{}"
    """The column, made by `metadata_column`."""
    after: tuple[JobReference, ...] = ()
    """The jobs that must be finished before."""
    after_failure: AfterFailure = "wait"
    concurrency: Limit | None = None
    sequence: By | None = None
    fair_by: str | tuple[str, ...] | None = None
    rate: Rate | None = None

    @property
    def limit(self) -> Limit | By | Fair | None:
        """What limits the number of the jobs of a key that may run, or be queued, at once."""
        return self.concurrency or self.sequence or (None if self.fair_by is None else fair(self.fair_by))

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that the table cannot store or a worker cannot use."""
        check_columns({name: getattr(self, name) for name in COLUMNS})
        check_shard(self.shard_by, self.shard_key)
        if isinstance(self.unique_key, str):
            check_key("unique_key", self.unique_key)
        elif self.unique_key is not None and not callable(self.unique_key):
            raise InvalidOption(f"unique_key must be a str, or a function that returns one, not {self.unique_key!r}.")
        self._check_limits()
        self._check_unique()

    @property
    def needs_shard(self) -> bool:
        """Whether its jobs have several keys that hold within one database, and no option says which one that is."""
        has_unique_key = self.unique is not None or self.unique_key is not None
        kinds = (has_unique_key, bool(self.concurrency or self.sequence), self.rate is not None)
        return sum(kinds) > 1 and not self.has_shard and self.database is None

    @property
    def has_shard(self) -> bool:
        """Whether the options say which database a job belongs to under the placement `spread`."""
        return self.shard_by is not None or self.shard_key is not None

    @property
    def unique_seconds(self) -> float | None:
        """The column for `until`."""
        return 0.0 if self.on_conflict == "rerun" else seconds_of(self.until)

    @property
    def is_plain(self) -> bool:
        """Whether its jobs have no key: no column beside the arguments depends on a call."""
        return (
            self.unique_key is None
            and self.unique is None
            and self.concurrency is None
            and self.sequence is None
            and self.fair_by is None
            and self.rate is None
        )

    @property
    def is_limited(self) -> bool:
        """Whether the number of the jobs of a key that may run at once is limited."""
        return self.limit is not None or self.on_conflict == "rerun"

    @property
    def makes_key(self) -> bool:
        """Whether the unique key depends on the arguments."""
        return self.unique is not None or callable(self.unique_key)

    def check_arguments(self, signature: Signature) -> None:
        """Raise `InvalidOption` if an option names an argument that the task does not take."""
        if self.unique is not None:
            self.unique.check(signature)
        for option, named in (("by", self.concurrency), ("by", self.sequence), ("by", self.rate)):
            if named is not None:
                require_arguments(option, named.names, signature)
        for option, names in (("fair_by", self.fair_by), ("shard_by", self.shard_by)):
            if names is not None:
                require_arguments(option, names_of(option, names), signature)

    def _check_unique(self) -> None:
        if not isinstance(self.unique, UniqueBy | None):
            raise InvalidOption(f'unique must be unique_by("payment_id") or unique_by(), not {self.unique!r}.')
        check_until(self.until)
        check_on_conflict(self.on_conflict)
        if self.unique is not None and self.unique_key is not None:
            raise InvalidOption("Give unique or unique_key, not both.")
        if self.unique is None and self.unique_key is None and (self.until, self.on_conflict) != ("finished", "skip"):
            raise InvalidOption('until and on_conflict need a key: give unique=unique_by("payment_id") or unique_key.')
        if self.on_conflict == "rerun" and (self.until != "finished" or self.limit is not None):
            raise InvalidOption(
                'on_conflict="rerun" has its jobs wait and run one after the other: give it without until, '
                "concurrency, sequence or fair_by."
            )

    def _check_limits(self) -> None:
        if not isinstance(self.concurrency, Limit | None):
            raise InvalidOption(f"concurrency must be limit(…), not {self.concurrency!r}.")
        if not isinstance(self.sequence, By | None):
            raise InvalidOption(f"sequence must be by(…), not {self.sequence!r}.")
        if self.fair_by is not None:
            fair(self.fair_by)
        if not isinstance(self.rate, Rate | None):
            raise InvalidOption(f'rate must be rate("100/m", …), not {self.rate!r}.')
        if sum(given is not None for given in (self.concurrency, self.sequence, self.fair_by)) > 1:
            raise InvalidOption(
                "A job has one limit: give one of concurrency, sequence and fair_by. The jobs of a sequence run one at "
                "a time."
            )


OF_SPEC = [field.name for field in fields(Options) if field.name in JobSpec._fields] + ["unique_seconds"]
"""The options that become fields of a `JobSpec`."""

COLUMNS = [name for name in OF_SPEC if name != "on_conflict"]
"""The options that become columns of a job, or the rows of what it waits for."""


def retention_column(kept: Mapping[str, Retention]) -> str | None:
    """A retention as the column has it: seconds by status. `None`, which the setting has as well, is left out."""
    times = {status: as_time(time) for status, time in kept.items()}
    seconds = {status: time.total_seconds() for status, time in times.items() if time is not None}
    return json.dumps(seconds) if seconds else None


def metadata_column(metadata: Any) -> str:
    """The metadata as the column has it. Raises `InvalidOption` for a reserved key, and for no small JSON object."""
    if not isinstance(metadata, Mapping):
        raise InvalidOption(f"metadata must be a dict, not {type(metadata).__name__}.")
    if taken := RESERVED_METADATA & set(metadata):
        raise InvalidOption(f"metadata cannot have the key {min(taken)!r}: the queue uses it. Choose another name.")
    try:
        text = encode("metadata", dict(metadata))
    except InvalidArguments as error:
        raise InvalidOption(str(error)) from None
    if size_of(text) > MAX_METADATA_BYTES:
        raise InvalidOption(
            f"metadata is {size_of(text):,} bytes long, and at most {MAX_METADATA_BYTES:,} are allowed. "
            "Store what is large elsewhere, and give its key."
        )
    return text


def check_size(call: EncodedCall, most: int) -> EncodedCall:
    """Return the call. Raises `InvalidArguments` if its arguments have more than `most` bytes."""
    size = size_of(call.args) + size_of(call.kwargs)
    if size > most:
        raise InvalidArguments(
            f"the arguments are {size:,} bytes long, and SKIPQUEUE['MAX_ARGUMENT_BYTES'] is {most:,}. "
            "Store what is large elsewhere, and pass its key."
        )
    return call
