"""The options of `@job` that limit how many jobs run at once: `concurrency`, `sequence` and `fair_by`. Pure.

The objects check their values when they are made. Only `check_signature` checks the names of arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Signature
from typing import Any, Literal, TypedDict

from ...exceptions import InvalidOption
from ...values.keys import checked_name, key_of, names_of, require_arguments
from ...values.part import CallArguments, PartOptions
from ...values.settings import LARGEST_LIMIT

Policy = Literal["halt", "continue"]


@dataclass(frozen=True)
class By:
    """The option `sequence`, made by `by(…)`: the arguments whose values make the sequence's key."""

    names: tuple[str, ...]
    on_failure: Policy = "halt"
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = key_of("sequence", self.name or task, self.names, arguments)
        return {"limit_key": key, "limit_kind": "halting" if self.on_failure == "halt" else "sequence", "capacity": 1}


@dataclass(frozen=True)
class Limit:
    """The option `concurrency`, made by `limit(…)`: how many jobs of one key may run at once."""

    capacity: int
    names: tuple[str, ...]
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = key_of("limit", self.name or task, self.names, arguments)
        return {"limit_key": key, "limit_kind": "concurrency", "capacity": self.capacity}


FEWEST_QUEUED = 2
"""How many jobs of a `fair_by` key may be queued while none of its jobs runs."""


@dataclass(frozen=True)
class Fair:
    """The option `fair_by`, checked: workers are shared equally between the keys made of these arguments' values."""

    names: tuple[str, ...]

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = key_of("fair", task, self.names, arguments)
        return {"limit_key": key, "limit_kind": "fair", "capacity": FEWEST_QUEUED}


def fair(names: Any) -> Fair:
    """Check a value of the option `fair_by`. Raises `InvalidOption` if it is not valid."""
    if not (checked := names_of("fair_by", names)):
        raise InvalidOption('fair_by takes the name of at least one argument: fair_by="tenant".')
    return Fair(checked)


def limit(capacity: int, /, *, by: str | tuple[str, ...] = (), name: str | None = None) -> Limit:
    """Let at most `capacity` jobs run at once: `@job(concurrency=limit(2, by="account_id"))`.

    by: the argument, or the arguments, whose values make the key; by default there is one key for the whole task.
    name: tasks that give the same name share one limit; by default each task has its own limit.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 1 <= capacity <= LARGEST_LIMIT:
        raise InvalidOption(f"limit takes a whole number of jobs from 1 to {LARGEST_LIMIT:,}, not {capacity!r}.")
    return Limit(capacity, names_of("limit(by=…)", by), checked_name("limit", name))


def by(*names: str, on_failure: Policy = "halt", name: str | None = None) -> By:
    """Run the jobs of a key strictly one after the other, in enqueue order: `@job(sequence=by("order_id"))`.

    names: the arguments whose values make the key; without a name, all jobs of the task are one sequence.
    on_failure: `halt`: after a job that failed, the key waits until somebody retries, discards or deletes that job.
    `continue`: the next job runs.
    name: tasks that give the same name share their sequences; by default each task has sequences of its own.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if on_failure not in ("halt", "continue"):
        raise InvalidOption(f"on_failure must be 'halt' or 'continue', not {on_failure!r}.")
    return By(names_of("by(…)", names), on_failure, checked_name("by", name))


class LimitOptions(TypedDict, total=False):
    """The options of `@job`."""

    concurrency: Limit | None
    sequence: By | None
    fair_by: str | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class TaskLimit(PartOptions):
    """The limit of a task: at most one of three options."""

    concurrency: Limit | None = None
    sequence: By | None = None
    fair_by: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
        if not isinstance(self.concurrency, Limit | None):
            raise InvalidOption(f"concurrency must be limit(…), not {self.concurrency!r}.")
        if not isinstance(self.sequence, By | None):
            raise InvalidOption(f"sequence must be by(…), not {self.sequence!r}.")
        if self.fair_by is not None:
            fair(self.fair_by)
        if sum(option is not None for option in (self.concurrency, self.sequence, self.fair_by)) > 1:
            raise InvalidOption(
                "A job has one limit: give one of concurrency, sequence and fair_by. The jobs of a sequence run one at "
                "a time."
            )

    @property
    def limit(self) -> Limit | By | Fair | None:
        return self.concurrency or self.sequence or (None if self.fair_by is None else fair(self.fair_by))

    @property
    def is_limited(self) -> bool:
        return self.limit is not None

    @property
    def has_key(self) -> bool:
        return bool(self.concurrency or self.sequence)

    def check_signature(self, signature: Signature) -> None:
        if self.limit is not None:
            require_arguments("by" if self.fair_by is None else "fair_by", self.limit.names, signature)

    def columns(self, call: CallArguments) -> dict[str, Any]:
        limit = self.limit
        return {} if limit is None else limit.columns(call.task_name, call.hashed(limit.names))


OPTIONS = TaskLimit
