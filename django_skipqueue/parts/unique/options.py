"""The options of unique keys: `unique`, with `unique_by`, `unique_key`, `until` and `on_conflict`. Pure.

Two calls of a task have the same key if and only if the chosen arguments are equal as JSON, whether they are passed by
position or by name. A key that would be too long for the index is cut.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self, TypedDict

from ...conf import settings
from ...exceptions import InvalidOption
from ...values.bounds import MAX_KEY_BYTES, NUMBER_RANGES, check_key, did_you_mean
from ...values.codec import decode
from ...values.part import CallArguments, PartOptions
from ...values.records import JobSpec, OnConflict
from ...values.statuses import FINISHED_STATUSES

Until = Literal["finished", "started"] | timedelta
UniqueKey = str | Callable[..., str]
CONFLICTS: tuple[OnConflict, ...] = ("skip", "replace", "raise", "rerun")

READABLE_BYTES = 900
"""A key that is too long is cut to this many bytes, followed by a digest of the whole key."""


@dataclass(frozen=True, slots=True)
class UniqueBy:
    """The option `unique`, made by `unique_by(…)`: the arguments whose values make the unique key."""

    names: tuple[str, ...] = ()
    """If empty, all arguments make the key."""

    def check(self, signature: inspect.Signature) -> None:
        """Raise `InvalidOption` if a name is not a parameter of the task."""
        parameters = signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        for name in self.names:
            if name not in parameters:
                suggestion = did_you_mean(name, list(parameters)) if parameters else ""
                raise InvalidOption(f"unique_by({name!r}): the task has no parameter of this name.{suggestion}")

    def key(self, task: str, texts: Mapping[str, str]) -> str:
        """Make the key of a call, such as `shop.jobs.charge(payment_id=42)`. `texts`: the chosen arguments, as JSON."""
        return _cut_to_fit(f"{task}({', '.join(f'{name}={text}' for name, text in texts.items())})")


def unique_by(*names: str) -> UniqueBy:
    """Make the unique key of a task's jobs from these arguments: `@job(unique=unique_by("payment_id"))`.

    Without names, all arguments make the key. It makes no difference whether an argument is passed by position, by
    name, or is a default. The task's name is part of the key, so two tasks never share a key.

    Raises `InvalidOption` if a value is not a name.
    """
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidOption(f'unique_by takes names of arguments, such as unique_by("payment_id"), not {name!r}.')
    return UniqueBy(names)


def seconds_of(until: Until) -> float | None:
    """Return the value of the column `unique_seconds` for the option `until`."""
    if isinstance(until, timedelta):
        return until.total_seconds()
    return 0.0 if until == "started" else None


def _cut_to_fit(key: str) -> str:
    key_bytes = key.encode()
    if len(key_bytes) <= MAX_KEY_BYTES:
        return key
    return f"{key_bytes[:READABLE_BYTES].decode(errors='ignore')}… {hashlib.sha256(key_bytes).hexdigest()}"


class UniqueOptions(TypedDict, total=False):
    """The options of `@job` and `.using()`."""

    unique_key: UniqueKey | None
    unique: UniqueBy | None
    until: Until | None
    on_conflict: OnConflict | None


@dataclass(frozen=True, kw_only=True)
class Unique(PartOptions):
    """The options of a task's unique keys."""

    unique_key: UniqueKey | None = None
    unique: UniqueBy | None = None
    """The arguments that make the key; an alternative to `unique_key`."""
    until: Until = "finished"
    """How long a job holds its unique key."""
    on_conflict: OnConflict = "skip"
    """What an enqueue does if another job holds its key."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
        if isinstance(self.unique_key, str):
            check_key("unique_key", self.unique_key)
        elif self.unique_key is not None and not callable(self.unique_key):
            raise InvalidOption(f"unique_key must be a str, or a function that returns one, not {self.unique_key!r}.")
        if not isinstance(self.unique, UniqueBy | None):
            raise InvalidOption(f'unique must be unique_by("payment_id") or unique_by(), not {self.unique!r}.')
        if isinstance(self.until, timedelta):
            if not NUMBER_RANGES["timeout"].allows(self.until.total_seconds()):
                raise InvalidOption(
                    f"until must be a timedelta above 0, and of at most a thousand years, not {self.until!r}."
                )
        elif self.until not in ("finished", "started"):
            raise InvalidOption(f'until must be "finished", "started" or a timedelta, not {self.until!r}.')
        if self.on_conflict not in CONFLICTS:
            choices = ", ".join(f'"{conflict}"' for conflict in CONFLICTS)
            raise InvalidOption(f"on_conflict must be one of {choices}, not {self.on_conflict!r}.")
        if self.unique is not None and self.unique_key is not None:
            raise InvalidOption("Give unique or unique_key, not both.")
        if not self.has_key and (self.until, self.on_conflict) != ("finished", "skip"):
            raise InvalidOption('until and on_conflict need a key: give unique=unique_by("payment_id") or unique_key.')

    @property
    def has_key(self) -> bool:
        return self.unique is not None or self.unique_key is not None

    @property
    def fixed_key(self) -> str | None:
        return self.unique_key if isinstance(self.unique_key, str) else None

    @property
    def makes_key(self) -> bool:
        return self.unique is not None or callable(self.unique_key)

    @property
    def calls_project(self) -> bool:
        return callable(self.unique_key)

    @property
    def is_limited(self) -> bool:
        return self.on_conflict == "rerun"

    def check_signature(self, signature: inspect.Signature) -> None:
        if self.unique is not None:
            self.unique.check(signature)

    def check_beside(self, others: Sequence[PartOptions]) -> None:
        if self.on_conflict == "rerun" and (self.until != "finished" or any(other.is_limited for other in others)):
            raise InvalidOption(
                'on_conflict="rerun" runs the jobs of a key one after the other, so it cannot be combined with until, '
                "concurrency, sequence or fair_by."
            )

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return the options with these changes. `unique` replaces `unique_key`, and the reverse."""
        no_key = {"unique": None, "unique_key": None}
        return super().changed((no_key if given.keys() & no_key.keys() else {}) | dict(given))

    def check_using(self, given: Mapping[str, Any]) -> None:
        if given.get("on_conflict") == "rerun" and self.on_conflict != "rerun":
            raise InvalidOption('Give on_conflict="rerun" to @job, because it must apply to every job of the task.')

    def in_spec(self, spec: JobSpec) -> JobSpec:
        seconds = 0.0 if self.on_conflict == "rerun" else seconds_of(self.until)
        spec = spec._replace(on_conflict=self.on_conflict)
        return within_retention(spec.with_columns(unique_seconds=seconds))

    def columns(self, call: CallArguments) -> dict[str, Any]:
        if self.unique is not None:
            unique_key = self.unique.key(call.task_name, call.texts(self.unique.names))
        elif callable(self.unique_key):
            unique_key = self.unique_key(*call.args, **call.kwargs)
            if not isinstance(unique_key, str):
                raise InvalidOption(f"unique_key's function must return a str, not {unique_key!r}.")
            check_key("unique_key", unique_key)
        elif self.unique_key is None:
            return {}
        else:
            unique_key = self.unique_key
        if self.on_conflict != "rerun":
            return {"unique_key": unique_key}
        # With "rerun", the jobs of a key run one after the other, as in a sequence.
        return {"unique_key": unique_key, "limit_key": f"rerun:{unique_key}", "limit_kind": "sequence", "capacity": 1}


OPTIONS = Unique


def within_retention(spec: JobSpec) -> JobSpec:
    """Return the spec, or raise `InvalidOption` if a finished job could be deleted while it still holds its key."""
    seconds = spec.columns.get("unique_seconds")
    if not seconds:
        return spec
    retention_of_task = decode(spec.retention) if spec.retention else {}
    for status in FINISHED_STATUSES:
        retention = settings.retention_of(status)
        retention_seconds = float("inf") if retention is None else retention.total_seconds()
        shortest = min(retention_seconds, retention_of_task.get(status, retention_seconds))
        if seconds > shortest:
            raise InvalidOption(
                f"until is {timedelta(seconds=seconds)}, but {status} jobs are deleted after "
                f"{timedelta(seconds=shortest)}, and a deleted job holds no key. "
                f"Raise SKIPQUEUE['RETENTION'][{status!r}], or record in a table of your own that the job has run."
            )
    return spec
