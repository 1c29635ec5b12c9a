"""Handles: texts that name a job with its database, such as `queue_1:42`. Pure."""

from ..exceptions import InvalidOption
from .records import JobReference

LARGEST_ID = 2**63 - 1
"""PostgreSQL's largest bigint."""

MOST_DIGITS = len(str(LARGEST_ID))


def handle_of(alias: str, job_id: int) -> str:
    return f"{alias}:{job_id}"


def parse_handle(text: str) -> JobReference:
    """The job that a handle, or the id alone, names. Raises `InvalidOption` for a text that is neither."""
    alias, colon, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > MOST_DIGITS or (colon and not alias):
        raise InvalidOption(f"{text!r} is no handle: that is the alias of a database and an id, such as 'default:42'.")
    return JobReference(int(number), alias or None)
