"""The allowed ranges of numbers in settings and options, and the checks of a job's columns before it is written.

A value that passes these checks is refused neither by a CHECK constraint nor by an index of the table.

`did_you_mean` suggests a known name for a mistyped name.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.utils.timezone import is_naive

from ..exceptions import InvalidOption
from .codec import encode
from .outcomes import LONGEST_DELAY

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers that includes both ends. `str()` of it completes the sentence "it must be …"."""

    least: float
    most: float
    is_whole: bool = False
    above: bool = False
    """Whether values must be above `least`, which then is not allowed itself."""

    def allows(self, value: object) -> bool:
        """Whether `value` is a number within the range. True and False do not count as numbers."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        if self.above:
            return f"a number of seconds above {self.least:g}, at most {self.most:,.0f}"
        kind = "an integer" if self.is_whole else "a number of seconds"
        return f"{kind} from {self.least:,g} to {self.most:,.0f}"


def whole(least: int, most: int) -> NumberRange:
    return NumberRange(least, most, is_whole=True)


LONGEST_PROCESS_WAIT = 14 * DAY_SECONDS
"""The most seconds for which a setting may make a process wait. System calls accept timeouts up to about 24 days."""

SMALLINT, INTEGER = 32_767, 2_147_483_647
"""The largest numbers that PostgreSQL columns of these types hold."""

LARGEST_JSON = 256 * 1024 * 1024
"""The size in bytes of the largest JSON that a `jsonb` column accepts."""

NUMBER_RANGES = {
    "priority": whole(-100, 100),
    "max_attempts": whole(1, SMALLINT),
    "timeout": NumberRange(0, 1000 * 365 * DAY_SECONDS, above=True),
    "poll_interval": NumberRange(0.01, LONGEST_PROCESS_WAIT),
    "heartbeat_interval": NumberRange(0, LONGEST_PROCESS_WAIT, above=True),
    "worker_timeout": NumberRange(1, LONGEST_PROCESS_WAIT),
    "shutdown_timeout": NumberRange(0, LONGEST_PROCESS_WAIT),
    "unknown_task_grace": NumberRange(0, 100 * 365 * DAY_SECONDS, above=True),
    "max_argument_bytes": whole(1, LARGEST_JSON),
    "max_result_bytes": whole(1, LARGEST_JSON),
    "concurrency": whole(1, 10_000),
    "processes": whole(1, 1_000),
    "max_jobs": whole(1, INTEGER),
    "max_jobs_per_worker": whole(1, INTEGER),
    "max_memory_mb": whole(1, INTEGER),
    "health_port": whole(1, 65_535),
    "window": whole(1, 100_000),
    "wait": NumberRange(1, LONGEST_PROCESS_WAIT),
    "max_message_size": whole(65_536, 512 * 1024 * 1024),
}
"""The allowed range of each setting or option, by name. A setting and an option with the same name share a range."""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown name: suggest a similar name, or else list all known names."""
    return close_to(name, known) or f" It knows {', '.join(sorted(known))}."


def close_to(name: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown name: suggest a similar name. Empty if no known name is similar."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


MAX_KEY_BYTES = 1_000
"""The most bytes in a queue name, a task name or a unique key, because an index entry must fit into a third of a
page."""

AFTER_FAILURE = ("wait", "discard", "run")
"""The values of the option `after_failure`: what happens to a job if a job that it waits for fails."""


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for a value that the job table would refuse. `columns` has values by column name."""
    for name, value in columns.items():
        if value is None and name not in NEVER_NULL:
            continue
        if check := CHECKS.get(name):
            check(value)
        elif name in NUMBER_RANGES:
            if not NUMBER_RANGES[name].allows(value):
                raise InvalidOption(f"{name} must be {NUMBER_RANGES[name]}, not {value!r}.")
        elif name not in UNCHECKED and isinstance(value, str):
            _check_key_once(name, value)


def _check_queue_name(queue_name: Any) -> None:
    if not isinstance(queue_name, str) or not _is_queue_name(queue_name):
        raise InvalidOption(
            f"queue_name must be a str without commas, and without spaces at its ends, not {queue_name!r}."
        )


def _check_timeout(value: Any) -> None:
    if not NUMBER_RANGES["timeout"].allows(value):
        raise InvalidOption(
            f"timeout must be {NUMBER_RANGES['timeout']}, not {value!r}. A task that gives none has no time limit."
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
        function = "make_aware" if django_settings.USE_TZ else "make_naive"
        raise InvalidOption(
            f"run_after must be {kind} datetime under USE_TZ = {django_settings.USE_TZ}. Use a timedelta, "
            f"django.utils.timezone.now() + timedelta(…), or django.utils.timezone.{function}(…)."
        )
    if not 1 < run_after.year < 9998:
        raise InvalidOption(f"run_after must be before the year 9998, not {run_after!r}.")


def check_key(option: str, text: str) -> None:
    """Raise `InvalidOption` for a string that PostgreSQL cannot store, or that is too long for an index."""
    encode(option, text)
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidOption(f"{option} must be at most {MAX_KEY_BYTES} bytes long, not {len(text.encode())}.")


_check_key_once = lru_cache(1_000)(check_key)
"""Checks each task name only once, because there are few of them."""

CHECKS: dict[str, Callable[[Any], None]] = {
    "queue_name": _check_queue_name,
    "run_after": check_run_after,
    "timeout": _check_timeout,
    "after_failure": _check_after_failure,
}
"""The check functions of columns, by column name, for columns that need more than a range in `NUMBER_RANGES`. Any other
string must fit into an index."""

NEVER_NULL = {"queue_name", "priority", "after_failure"}

UNCHECKED = {"retention", "metadata", "unique_key", "on_conflict"}
"""Columns and options that need no check here, because the code that makes their values has checked them."""
