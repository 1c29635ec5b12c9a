"""Checks values for the columns of a job before a statement is sent.

Invariant: neither a CHECK constraint nor an index refuses a value that passes here.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.utils.timezone import is_naive

from ..exceptions import InvalidOption
from .bounds import LIMITS
from .codec import encode
from .outcomes import LONGEST_DELAY

MAX_KEY_BYTES = 1_000
"""Most bytes in a queue's name, a task's or a unique key: an index entry must fit into a third of a page."""


AFTER_FAILURE = ("wait", "discard", "run")
"""What happens to a job if one that it needs has not completed."""


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for a value, by the name of its column, that the table refuses. Takes 1 µs."""
    for name, value in columns.items():
        if value is None and name not in NEVER_NULL:
            continue
        if name in NUMBERS:
            if not LIMITS[name].allows(value):
                raise InvalidOption(f"{name} must be {LIMITS[name]}, not {value!r}.{NUMBERS[name]}")
        elif check := CHECKS.get(name):
            check(value)
        elif name not in UNCHECKED and isinstance(value, str):
            _check_key_once(name, value)


def _check_queue_name(queue_name: Any) -> None:
    if not isinstance(queue_name, str) or not _is_queue_name(queue_name):
        raise InvalidOption(
            f"queue_name must be a str without commas, and without spaces at its ends, not {queue_name!r}."
        )


def _check_after_failure(value: Any) -> None:
    if value not in AFTER_FAILURE:
        raise InvalidOption(f"after_failure must be one of {', '.join(AFTER_FAILURE)}, not {value!r}.")


@lru_cache(1_000)
def _is_queue_name(name: str) -> bool:
    """Whether `--queues` can name this queue. Raises `InvalidOption` if the name is too long for an index."""
    check_key("queue_name", name)
    return name == name.strip() and bool(name) and "," not in name


def check_run_after(run_after: datetime | timedelta | None) -> None:
    """Raise `InvalidOption` for a value that is not a time or a delay, or that the column cannot store."""
    if run_after is None:
        return
    if isinstance(run_after, timedelta):
        if abs(run_after) > LONGEST_DELAY:
            raise InvalidOption(f"run_after must be within {LONGEST_DELAY.days // 365} years, not {run_after!r}.")
        return
    if not isinstance(run_after, datetime):
        raise InvalidOption(f"run_after must be a datetime or timedelta(seconds=…), not {run_after!r}.")
    if is_naive(run_after) == django_settings.USE_TZ:
        kind = "an aware" if django_settings.USE_TZ else "a naive"
        make = "make_aware" if django_settings.USE_TZ else "make_naive"
        raise InvalidOption(
            f"run_after must be {kind} datetime under USE_TZ = {django_settings.USE_TZ}. Use a timedelta, "
            f"django.utils.timezone.now() + timedelta(…), or django.utils.timezone.{make}(…)."
        )
    if not 1 < run_after.year < 9998:
        raise InvalidOption(f"run_after must be before the year 9998, not {run_after!r}.")


def check_key(option: str, text: str) -> None:
    """Raise `InvalidOption` for a text that is too long for an index."""
    encode(option, text)
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidOption(f"{option} must be at most {MAX_KEY_BYTES} bytes long, not {len(text.encode())}.")


_check_key_once = lru_cache(1_000)(check_key)
"""For the names of tasks, which are few."""

CHECKS: dict[str, Callable[[Any], None]] = {
    "queue_name": _check_queue_name,
    "run_after": check_run_after,
    "after_failure": _check_after_failure,
}
"""The check of each column that is no number. A string of any other column must fit into an index."""

NUMBERS = {"priority": "", "max_attempts": "", "timeout": " A task that gives none has no time limit."}
"""The columns that hold a number within its limit, each with what its error says beyond that."""

NEVER_NULL = {"queue_name", "priority", "after_failure"}

UNCHECKED = {"retention", "metadata", "unique_key", "on_conflict"}
"""Columns and options whose values are checked where they are made: encoded JSON, a unique key."""
