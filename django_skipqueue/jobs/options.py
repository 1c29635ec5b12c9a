"""The options for enqueuing the jobs of a task.

Invariant: every `Options` object holds values that the table can store.

The options of a part are in its `options.py`. This file lists each `TypedDict` there, for type checkers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from inspect import Signature
from typing import Any, TypedDict, TypeVar

from django.db import connections

from ..exceptions import InvalidArguments, InvalidOption
from ..parts.batches import options as batches
from ..parts.databases import options as databases
from ..parts.installed import given
from ..parts.limits import options as limits
from ..parts.rates import options as rates
from ..parts.unique import options as unique_keys
from ..values.backoff import Backoff
from ..values.bounds import check_columns
from ..values.codec import encode, size_of
from ..values.part import PartOptions
from ..values.records import EncodedCall, JobSpec
from ..values.settings import Retention, as_time

ExceptionClasses = type[BaseException] | tuple[type[BaseException], ...]


class JobOptions(
    unique_keys.UniqueOptions,
    TypedDict,
    total=False,
):
    """The options that `@job` and `.using()` share. `.using()` ignores one that is `None`."""

    queue_name: str | None
    priority: int | None
    max_attempts: int | None
    timeout: float | None


class UsingOptions(
    JobOptions,
    batches.AfterOptions,
    databases.ShardKey,
    total=False,
):
    """The options of `.using()`."""

    database: str | None
    run_after: datetime | timedelta | None
    metadata: Mapping[str, Any] | None


class RunOptions(
    JobOptions,
    databases.ShardOptions,
    limits.LimitOptions,
    rates.RateOptions,
    total=False,
):
    """The options that `@job` and `with_options` share."""

    backoff: Backoff | None
    retry_on: ExceptionClasses | None
    discard_on: ExceptionClasses
    redact: Sequence[str]


class TaskOptions(RunOptions, total=False):
    """The options of `@job`, except `takes_context`. The docstring of `job` explains them."""

    name: str | None
    database: str | None
    atomic: bool
    retention: Mapping[str, Retention]


OPTIONS_OF_PARTS: tuple[type[PartOptions], ...] = given("options", "OPTIONS")

MAX_METADATA_BYTES = 4_000
"""The largest metadata of a job: every claim reads the metadata of its jobs."""

RESERVED_METADATA = {"backend", "deferred", "opentelemetry", "schedule", "sentry"}
"""The keys of `django.tasks`, of schedules and of tracers."""

P = TypeVar("P", bound=PartOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options with which a task enqueues its jobs, set by `@job` and changed by `.using()`."""

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None`: `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    run_after: datetime | timedelta | None = None
    timeout: float | None = None
    """Seconds that an attempt may take, set by `.using()`. The timeout of `@job` is `Task.timeout`."""
    retention: str | None = None
    """The column, made by `retention_column`."""
    metadata: str = "{}"
    """The column, made by `metadata_column`."""
    database: str | None = None
    """The alias of the database for the jobs; `None`: `SKIPQUEUE["DATABASE"]`, or what a part chooses."""
    of_parts: tuple[PartOptions, ...] = ()
    """An object for each part of which an option was given, in the order of `OPTIONS_OF_PARTS`."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that the table cannot store or a worker cannot use."""
        check_columns({name: getattr(self, name) for name in SPEC_OPTIONS})
        if self.database is not None and self.database not in connections:
            known = ", ".join(sorted(connections))
            raise InvalidOption(f"database must be one of {known}, not {self.database!r}: DATABASES has no other.")
        for part in self.of_parts:
            part.check_beside([other for other in self.of_parts if other is not part])

    def changed(self, given: Mapping[str, Any]) -> "Options":
        """These options with the given values, by name. Raises `InvalidOption`."""
        known = {type(part): part for part in self.of_parts}
        for kind in OPTIONS_OF_PARTS:
            if own := {name: value for name, value in given.items() if name in NAMES_OF_OPTIONS[kind]}:
                known[kind] = known.get(kind, kind()).changed(own)
        of_parts = tuple(known[kind] for kind in OPTIONS_OF_PARTS if known.get(kind, kind()) != kind())
        return replace(self, of_parts=of_parts, **{name: given[name] for name in given if name in CORE_OPTIONS})

    def check_using(self, given: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` if `.using()` cannot change these options to the given values."""
        for kind in OPTIONS_OF_PARTS:
            (self.of_part(kind) or kind()).check_using(given)

    def of_part(self, kind: type[P]) -> P | None:
        """The options of a part; `None` if no option of the part was given."""
        return next((part for part in self.of_parts if isinstance(part, kind)), None)

    def spec(self, task: str, **columns: Any) -> JobSpec:
        """The columns of the task's jobs. `columns`: values that replace the values of the options."""
        spec = JobSpec(task, **{name: getattr(self, name) for name in SPEC_OPTIONS} | columns)
        for part in self.of_parts:
            spec = part.in_spec(spec)
        return spec

    @property
    def fixed_key(self) -> str | None:
        """The unique key of every job; `None`: the jobs have none, or `makes_key`."""
        return next((part.fixed_key for part in self.of_parts if part.fixed_key), None)

    @property
    def makes_key(self) -> bool:
        """Whether the unique key depends on the arguments."""
        return any(part.makes_key for part in self.of_parts)

    @property
    def calls_project(self) -> bool:
        """Whether a `.defer()` calls a function of the project for these options."""
        return any(part.calls_project for part in self.of_parts)

    @property
    def is_limited(self) -> bool:
        """Whether jobs of the task may wait for the end of others."""
        return any(part.is_limited for part in self.of_parts)

    def check_signature(self, signature: Signature) -> None:
        """Raise `InvalidOption` if an option names an argument that the task does not take."""
        for part in self.of_parts:
            part.check_signature(signature)


NAMES_OF_OPTIONS = {kind: {field.name for field in fields(kind)} for kind in OPTIONS_OF_PARTS}
"""The names of the options of each part."""

CORE_OPTIONS = {field.name for field in fields(Options)} - {"of_parts"}

SPEC_OPTIONS = [name for name in JobSpec._fields if name in CORE_OPTIONS]
"""The options that become fields of a `JobSpec`."""


def retention_column(kept: Mapping[str, Retention]) -> str | None:
    """A retention as the column stores it: seconds by status. Leaves out `None`, which the setting then has as well."""
    times = {status: as_time(time) for status, time in kept.items()}
    seconds = {status: time.total_seconds() for status, time in times.items() if time is not None}
    return json.dumps(seconds) if seconds else None


def metadata_column(metadata: Any) -> str:
    """The metadata as the column stores it. Raises `InvalidOption` for a reserved key, and unless it is small JSON."""
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
