"""The option `rate` of `@job`, which limits how often a task's jobs start. Pure.

The objects check their values when they are made. Only `check_signature` checks the names of arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Signature
from typing import Any, TypedDict

from ...exceptions import InvalidOption
from ...values.keys import checked_name, key_of, names_of, require_arguments
from ...values.part import CallArguments, PartOptions
from ...values.settings import burst_of, interval_of


@dataclass(frozen=True)
class Rate:
    """The option `rate`, made by `rate(…)`: how often jobs of one key may start."""

    interval: float
    """Seconds from one start to the next."""
    burst: int
    """How many jobs may start at the same time after a pause."""
    names: tuple[str, ...] = ()
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = key_of("rate", self.name or task, self.names, arguments)
        return {"rate_key": key, "rate_interval": self.interval, "rate_burst": self.burst}


def rate(text: str, /, *, by: str | tuple[str, ...] = (), burst: int | None = None, name: str | None = None) -> Rate:
    """Limit how many jobs of a key start per second, minute, hour or day: `@job(rate=rate("100/m", by="tenant"))`.

    text: a number of jobs, and a second, minute, hour or day: "50/s", "100/m", "10/h", "1/d"; also "3/10s".
    by: the argument, or the arguments, whose values make the key; by default there is one key for the whole task.
    burst: how many jobs may start at the same time after a pause; by default the jobs of one second, at least 1.
    name: tasks that give the same name share one rate; by default each task has its own rate.

    Raises `InvalidOption` for a value that cannot be used.
    """
    interval = interval_of(text)
    return Rate(interval, burst_of(burst, interval), names_of("rate(by=…)", by), checked_name("rate", name))


class RateOptions(TypedDict, total=False):
    """The options of `@job`."""

    rate: Rate | None


@dataclass(frozen=True, kw_only=True)
class TaskRate(PartOptions):
    """The rate of a task."""

    rate: Rate | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
        if not isinstance(self.rate, Rate | None):
            raise InvalidOption(f'rate must be rate("100/m", …), not {self.rate!r}.')

    @property
    def has_key(self) -> bool:
        return self.rate is not None

    def check_signature(self, signature: Signature) -> None:
        if self.rate is not None:
            require_arguments("by", self.rate.names, signature)

    def columns(self, call: CallArguments) -> dict[str, Any]:
        return {} if self.rate is None else self.rate.columns(call.task_name, call.hashed(self.rate.names))


OPTIONS = TaskRate
