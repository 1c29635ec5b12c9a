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
"""What a value is: a text, a list of texts, or anything else without a unit; an integer or a `Count` of jobs; a number
of seconds; a rate; a datetime."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    name: str
    """Of its column. With `field`: of its field in JSON."""
    title: Any
    """The heading of its column; an empty string: it has none."""
    value: Callable[[T], Any]
    """`None`: nobody knows it, or there is nothing to say."""
    unit: Unit = ""
    field: str | None = ""
    """The name in JSON, if that is not the name of the column; `None`: it is not in JSON."""
    is_optional: bool = False
    """Whether a table in which no subject has a value, or all have a count of zero, leaves out the column."""
    metric: Metric | None = None
    """Its gauge, with a label that names the subject; `None`: Prometheus does not have it."""

    @property
    def key(self) -> str | None:
        """The name in JSON."""
        return self.name if self.field == "" else self.field
