"""Read from a job's column `operations` which operator has done what to the job, when and why.

Other programs may write rows. So if one value of an entry is missing or has a wrong type, the rest is still read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext

from ..models import Job, Status
from ..values.codec import shorten
from .durations import exact, moment_of

LONGEST_OPERATION_TEXT = 500

FINISHING = ("discard", "cancel")
"""The verbs that finish a job."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    verb: str
    at: datetime
    by: str = ""
    """The user's name; empty if a program did it."""
    reason: str = ""
    attempts: int = 0
    """How many attempts the job had had at that time."""
    change: str = ""
    """The value before and after, if the verb set a value; for a copy, the original job."""
    attempt_started_at: datetime | None = None
    """For a release or a snooze: when the attempt that it ended had started; otherwise `None`."""
    times: int = 1
    """The number of snoozes in a row."""
    attempts_after: int | None = None
    """The job's number of attempts after this operation, if the operation has changed it; otherwise `None`."""


def operations_of(job: Job) -> list[Operation]:
    """Return the operations on a job, the oldest first."""
    parsed = map(_parsed_operation, job.operations or [])
    return sorted((operation for operation in parsed if operation), key=lambda operation: operation.at)


def attempts_before(operations: Iterable[Operation], moment: datetime | None) -> int:
    """Return how many attempts up to `moment` (or in all) no longer count, such as attempts before a manual retry."""
    past_operations = (operation for operation in operations if moment is None or operation.at <= moment)
    return sum(
        operation.attempts - operation.attempts_after
        for operation in past_operations
        if operation.attempts_after is not None
    )


def number_of_attempts(job: Job) -> int:
    """Return the number of all attempts of a job, including those before manual retries."""
    return job.attempts + attempts_before(operations_of(job), None)


def number_of_attempt(job: Job, number: object, moment: datetime | None) -> int | None:
    """Return an attempt's number in the job's whole life. The row's numbers restart at 1 after a manual retry.

    `number` is the number in the row, `moment` a time within the attempt.
    """
    if not isinstance(number, int):
        return None
    return number + (attempts_before(operations_of(job), moment) if moment else 0)


def was_cancelled(job: Job, ended_at: datetime | None) -> bool:
    """Return whether an operator has ended the job before, or when, the attempt ended."""
    operations = operations_of(job)
    if job.status != Status.DISCARDED or not operations or ended_at is None:
        return False
    last_operation = operations[-1]
    return last_operation.verb in FINISHING and ended_at >= last_operation.at


def _parsed_operation(entry: Any) -> Operation | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("verb"), str) or not (at := moment_of(entry.get("at"))):
        return None
    by, reason, times = entry.get("by"), entry.get("reason"), entry.get("times")
    attempts, attempts_after = entry.get("attempts"), entry.get("attempts_after")
    if entry["verb"] == "retry":  # a manual retry makes the attempts count from 0 again
        attempts_after = 0
    elif not isinstance(attempts_after, int):
        attempts_after = None
    return Operation(
        verb=shorten(entry["verb"], LONGEST_OPERATION_TEXT),
        at=at,
        by=shorten(by, LONGEST_OPERATION_TEXT) if isinstance(by, str) else "",
        reason=shorten(reason, LONGEST_OPERATION_TEXT) if isinstance(reason, str) else "",
        attempts=attempts if isinstance(attempts, int) else 0,
        attempt_started_at=moment_of(entry.get("since")),
        attempts_after=attempts_after,
        times=times if isinstance(times, int) else 1,
        change=_change_in_words(entry),
    )


def _change_in_words(entry: Mapping[str, Any]) -> str:
    if "from" in entry and "to" in entry:
        return f"{_value_in_words(entry['from'])} → {_value_in_words(entry['to'])}"
    return gettext("job %(id)s") % {"id": _value_in_words(entry["job"])} if "job" in entry else ""


def _value_in_words(value: Any) -> str:
    moment = moment_of(value)
    return exact(moment) if moment else shorten(str(value), LONGEST_OPERATION_TEXT)
