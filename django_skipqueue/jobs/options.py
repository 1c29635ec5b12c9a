"""The options of `@job`, `with_options` and `.using()`, such as the queue and the priority of a task's jobs.

An `Options` object checks its values when it is made, so that it only holds values that the table can store.

Each part defines its options in its own `options.py`. This file lists the `TypedDict` classes of the parts, for type
checkers.
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
from ..parts.installed import from_each_part
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
    """The options that `@job` and `.using()` share. `.using()` ignores an option that is `None`."""

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


OPTIONS_OF_PARTS: tuple[type[PartOptions], ...] = from_each_part("options", "OPTIONS")

MAX_METADATA_BYTES = 4_000
"""The most bytes of a job's metadata. It must be small, because every claim reads it."""

RESERVED_METADATA = {"backend", "deferred", "opentelemetry", "schedule", "sentry"}
"""Keys of the metadata that the package itself uses, for `django.tasks`, schedules and tracers."""

P = TypeVar("P", bound=PartOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options with which a task enqueues its jobs, set by `@job` and changed by `.using()`."""

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None` means the value of `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    run_after: datetime | timedelta | None = None
    timeout: float | None = None
    """Seconds that an attempt may take, set by `.using()`. The timeout of `@job` is `Task.timeout`."""
    retention: str | None = None
    """The value of the column `retention`, made by `retention_column`."""
    metadata: str = "{}"
    """The value of the column `metadata`, made by `metadata_column`."""
    database: str | None = None
    """The alias of the database for the jobs. `None` means the setting `DATABASE`, or the database that a part
    chooses."""
    of_parts: tuple[PartOptions, ...] = ()
    """The options of parts: one object for each part with an option that was given, in the order of
    `OPTIONS_OF_PARTS`."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that the table cannot store or a worker cannot use."""
        check_columns({name: getattr(self, name) for name in SPEC_OPTIONS})
        if self.database is not None and self.database not in connections:
            known = ", ".join(sorted(connections))
            raise InvalidOption(f"database must be one of {known}, not {self.database!r}: DATABASES has no other.")
        for part in self.of_parts:
            part.check_beside([other for other in self.of_parts if other is not part])

    def changed(self, new_values: Mapping[str, Any]) -> "Options":
        """Return a copy of these options with these new values, by name. Raises `InvalidOption`."""
        options_by_class = {type(part): part for part in self.of_parts}
        for part_class in OPTIONS_OF_PARTS:
            if values := {name: value for name, value in new_values.items() if name in NAMES_OF_OPTIONS[part_class]}:
                options_by_class[part_class] = options_by_class.get(part_class, part_class()).changed(values)
        of_parts = tuple(  # without a part whose options all have their defaults
            options_by_class[part_class]
            for part_class in OPTIONS_OF_PARTS
            if options_by_class.get(part_class, part_class()) != part_class()
        )
        return replace(
            self, of_parts=of_parts, **{name: new_values[name] for name in new_values if name in CORE_OPTIONS}
        )

    def check_using(self, new_values: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` if `.using()` cannot change these options to these values."""
        for part_class in OPTIONS_OF_PARTS:
            (self.of_part(part_class) or part_class()).check_using(new_values)

    def of_part(self, part_class: type[P]) -> P | None:
        """The options of the part with this class; `None` if no option of the part was given."""
        return next((part for part in self.of_parts if isinstance(part, part_class)), None)

    def spec(self, task: str, **columns: Any) -> JobSpec:
        """The spec for new jobs of a task with these options. `columns`: values that replace those of the options."""
        spec = JobSpec(task, **{name: getattr(self, name) for name in SPEC_OPTIONS} | columns)
        for part in self.of_parts:
            spec = part.in_spec(spec)
        return spec

    @property
    def fixed_key(self) -> str | None:
        """The unique key that all jobs share. `None` if the jobs have none, or if the key depends on the arguments."""
        return next((part.fixed_key for part in self.of_parts if part.fixed_key), None)

    @property
    def makes_key(self) -> bool:
        """Whether the unique key depends on the arguments."""
        return any(part.makes_key for part in self.of_parts)

    @property
    def calls_project(self) -> bool:
        """Whether `.defer()` calls a function of the project to compute these options."""
        return any(part.calls_project for part in self.of_parts)

    @property
    def is_limited(self) -> bool:
        """Whether a job of the task may have to wait until other jobs end."""
        return any(part.is_limited for part in self.of_parts)

    def check_signature(self, signature: Signature) -> None:
        """Raise `InvalidOption` if an option names an argument that the task does not take."""
        for part in self.of_parts:
            part.check_signature(signature)


NAMES_OF_OPTIONS = {kind: {field.name for field in fields(kind)} for kind in OPTIONS_OF_PARTS}
"""For each part's class of options, the names of its options."""

CORE_OPTIONS = {field.name for field in fields(Options)} - {"of_parts"}

SPEC_OPTIONS = [name for name in JobSpec._fields if name in CORE_OPTIONS]
"""The options that become fields of a `JobSpec`."""


def retention_column(retention: Mapping[str, Retention]) -> str | None:
    """Encode a retention for its column: the seconds by status, without a status whose jobs are kept forever."""
    durations = {status: as_time(duration) for status, duration in retention.items()}
    seconds = {status: duration.total_seconds() for status, duration in durations.items() if duration is not None}
    return json.dumps(seconds) if seconds else None


def metadata_column(metadata: Any) -> str:
    """Encode metadata for its column. Raises `InvalidOption` for reserved keys, and if it is not small JSON."""
    if not isinstance(metadata, Mapping):
        raise InvalidOption(f"metadata must be a dict, not {type(metadata).__name__}.")
    if reserved_keys := RESERVED_METADATA & set(metadata):
        raise InvalidOption(
            f"metadata cannot have the key {min(reserved_keys)!r}: the queue uses it. Choose another name."
        )
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


def check_size(call: EncodedCall, max_bytes: int) -> EncodedCall:
    """Return the call. Raises `InvalidArguments` if its arguments are larger than `max_bytes`."""
    size = size_of(call.args) + size_of(call.kwargs)
    if size > max_bytes:
        raise InvalidArguments(
            f"the arguments are {size:,} bytes long, and SKIPQUEUE['MAX_ARGUMENT_BYTES'] is {max_bytes:,}. "
            "Store what is large elsewhere, and pass its key."
        )
    return call
