"""`Fact`: one field of a subject, such as a queue or a worker, at one moment. Pure.

The facts of a subject are one tuple, beside the function that reads the subject. The admin, the tables of the command
line, `--json` and Prometheus render this tuple, so a further fact is a further entry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from .exposition import Metric

T = TypeVar("T")

Unit = Literal["", "jobs", "seconds", "jobs per minute", "time"]
"""In this order: a text, a list of texts, or anything else without a unit; an integer or a `Count` of jobs; a number
of seconds; a rate; a datetime."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    name: str
    """The name of its column, and of its field in JSON unless `field` says another."""
    title: Any
    """The heading of its column; an empty string: the column has no heading."""
    value: Callable[[T], Any]
    """Returns the value for a subject; `None`: it is unknown, or there is nothing to say."""
    unit: Unit = ""
    field: str | None = ""
    """The name in JSON, if it is not the name of the column; `None`: the fact is not in JSON."""
    is_optional: bool = False
    """Whether a table in which no subject has a value, or all have a count of zero, leaves out the column."""
    metric: Metric | None = None
    """Its gauge in Prometheus, with a label that names the subject; `None`: it has no gauge."""

    @property
    def key(self) -> str | None:
        """The name in JSON."""
        return self.name if self.field == "" else self.field
