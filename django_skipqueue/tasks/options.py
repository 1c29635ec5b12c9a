"""How the jobs of a task are enqueued.

Invariant: an `Options` that exists can be written into a row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..exceptions import InvalidArguments, InvalidOption
from ..store.columns import check_columns, check_key
from ..values.codec import size_of
from ..values.records import Call

UniqueKey = str | Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How jobs of a task are enqueued, unless `.using()` says otherwise."""

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None`: what `SKIPQUEUE["MAX_ATTEMPTS"]` says."""
    run_after: datetime | timedelta | None = None
    unique_key: UniqueKey | None = None
    timeout: float | None = None
    """Seconds that an attempt may take; `None`: what the task says."""
    database: str | None = None
    """`None`: what `SKIPQUEUE["DATABASE"]` says."""

    def __post_init__(self) -> None:
        """Refuse what the table or the worker could not use."""
        check_columns(self.queue_name, self.priority, self.max_attempts, self.run_after)
        if self.timeout is not None and not (_is_number(self.timeout) and 0 < self.timeout < math.inf):
            raise InvalidOption(f"timeout must be a number of seconds above 0, not {self.timeout!r}.")
        if isinstance(self.unique_key, str):
            check_key("unique_key", self.unique_key)
        elif self.unique_key is not None and not callable(self.unique_key):
            raise InvalidOption(f"unique_key must be a str, or a function that returns one, not {self.unique_key!r}.")


def check_size(call: Call, most: int) -> Call:
    """The call, unless its arguments are larger than `most` bytes, which the settings say: read once for many calls."""
    size = size_of(call.args) + size_of(call.kwargs)
    if size > most:
        raise InvalidArguments(
            f"the arguments are {size:,} bytes long, and SKIPQUEUE['MAX_ARGUMENT_BYTES'] is {most:,}. "
            "Store what is large elsewhere, and pass its key."
        )
    return call


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
