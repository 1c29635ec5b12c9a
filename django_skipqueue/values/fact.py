"""`Fact`: one displayed value of a subject, such as the depth of a queue. A subject is a queue, a worker or a job, etc.

Each kind of subject has one tuple of facts, beside the function that reads the subject from the database. The admin,
the command-line tables, `--json` and Prometheus all render this tuple, so a new fact is a new entry in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from .exposition import Metric

T = TypeVar("T")

Unit = Literal["", "jobs", "seconds", "jobs per minute", "time"]
"""The unit says how to display a value. `""`: a text, or a list of texts. `jobs`: an integer or a `Count`. `seconds`
and `jobs per minute`: a number. `time`: a datetime."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    name: str
    """The name of the fact's column in tables, and of its field in JSON unless `field` gives another name."""
    title: Any
    """The heading of the column; an empty string for no heading."""
    value: Callable[[T], Any]
    """Takes a subject and returns the value; `None` if it is unknown, or if there is nothing to show."""
    unit: Unit = ""
    field: str | None = ""
    """The name in JSON, if it differs from the column's name. `None` leaves the fact out of JSON."""
    is_optional: bool = False
    """Whether a table leaves out the column if no subject has a value, or if all values are zero."""
    metric: Metric | None = None
    """The fact's Prometheus gauge, with a label that names the subject. `None` if it has no gauge."""

    @property
    def key(self) -> str | None:
        """The fact's name in JSON; `None` if the fact is not in JSON."""
        return self.name if self.field == "" else self.field
