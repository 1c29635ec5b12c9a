"""What the columns of a job can hold. Values are checked before a statement is sent.

Invariant: a value that passes here is refused neither by a CHECK nor by an index.
"""

from datetime import datetime, timedelta
from functools import lru_cache

from django.conf import settings as django_settings
from django.utils.timezone import is_naive

from ..exceptions import InvalidOption
from ..values.codec import encode
from ..values.outcomes import LONGEST_DELAY

MAX_KEY_BYTES = 1_000
"""Bytes in a queue's name or a unique key: an index entry must fit into a third of a page."""


def check_columns(
    queue_name: str,
    priority: int,
    max_attempts: int | None,
    run_after: datetime | timedelta | None,
    timeout: float | None,
) -> None:
    """Refuse what the table could not take. Costs 0.3 µs for values like those of the last call."""
    if not isinstance(queue_name, str) or not _is_queue_name(queue_name):
        raise InvalidOption(
            f"queue_name must be a str without commas, and without spaces at its ends, not {queue_name!r}."
        )
    if not _is_whole(priority) or not -100 <= priority <= 100:
        raise InvalidOption(f"priority must be an int from -100 to 100, not {priority!r}.")
    if max_attempts is not None and (not _is_whole(max_attempts) or not 1 <= max_attempts <= 32_767):
        raise InvalidOption(f"max_attempts must be an int from 1 to 32767, not {max_attempts!r}.")
    if run_after is not None:
        check_run_after(run_after)
    if timeout is not None and not (_is_number(timeout) and 0 < timeout <= LONGEST_DELAY.total_seconds()):
        raise InvalidOption(f"timeout must be a number of seconds above 0, not {timeout!r}.")


@lru_cache(1_000)
def _is_queue_name(name: str) -> bool:
    """Whether `--queues` can name it; raises where an index could not take it."""
    check_key("queue_name", name)
    return name == name.strip() and bool(name) and "," not in name


def check_run_after(run_after: datetime | timedelta) -> None:
    """Refuse what is no time to run, or one that a row could not have."""
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
    """Refuse a text that an index could not take."""
    encode(option, text)
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidOption(f"{option} must be at most {MAX_KEY_BYTES} bytes long, not {len(text.encode())}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
