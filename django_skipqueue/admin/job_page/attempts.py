"""The attempts of a job, read from its row: those with an error, and the last one.

The entries may come from a worker of any version: a value that is missing, or has another type, is not shown. A manual
retry starts the count of the row at 1 again; the numbers here continue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.utils.translation import gettext

from ...exceptions import WorkerDied
from ...explanations.operations import attempts_before, number_of_attempt, was_cancelled
from ...models import Job, Status
from ...operators.durations import span
from ...operators.json_time import moment_of
from ...values.outcomes import Discard
from ..verbs.table import CANCEL
from .logs import ShownLog
from .operations import Operation, operations_of
from .tracebacks import Part, parts_of

DIED = f"{WorkerDied.__module__}.{WorkerDied.__qualname__}"
ASKED_TO_BE_DISCARDED = f"{Discard.__module__}.{Discard.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    number: int | None
    status: str
    """`failed`, or the status of the job after this attempt."""
    worker: str
    duration: timedelta | None
    ended_at: datetime | None
    started_at: datetime | None = None
    waited: timedelta | None = None
    """The time from the job's due time to the start of the attempt; `None` if it is not known."""
    is_cancelled: bool = False
    exception: str = ""
    message: str = ""
    traceback: str = ""
    sentry_event_id: str = ""
    log: ShownLog | None = None

    @property
    def label(self) -> str:
        return gettext("cancelled") if self.is_cancelled else str(Status(self.status).label)

    @property
    def is_recovered(self) -> bool:
        return self.exception == DIED

    @property
    def took(self) -> str:
        return "" if self.duration is None else span(self.duration)

    @property
    def headline(self) -> str:
        return self.message.strip().partition("\n")[0]

    @property
    def is_in_traceback(self) -> bool:
        """Whether the traceback contains the message. Then the message is not shown on its own."""
        return bool(self.message.strip()) and self.message.strip() in self.traceback

    @cached_property
    def parts(self) -> list[Part]:
        return parts_of(self.traceback) if self.traceback.strip() else []


def attempts_of(job: Job) -> list[Attempt]:
    """The newest first."""
    operations = operations_of(job)
    left = [_left(entry, job) for entry in job.errors if isinstance(entry, dict)]
    if left:
        left[-1] = _as_the_last(left[-1], job, operations)
    newest = left[-1].number if left else None
    return [*_without_error(job, operations, newest or 0), *reversed(left)]


def _left(entry: Mapping[str, Any], job: Job) -> Attempt:
    ended_at, took = moment_of(entry.get("at")), _span(entry.get("duration_ms"))
    exception = _text(entry.get("exception"))
    return Attempt(
        number=number_of_attempt(job, entry.get("attempt"), ended_at),
        status=Status.DISCARDED if exception == ASKED_TO_BE_DISCARDED else Status.FAILED,
        worker=_text(entry.get("worker")),
        duration=took,
        started_at=ended_at - took if ended_at and took is not None else None,
        ended_at=ended_at,
        waited=_span(entry.get("wait_ms")),
        exception=exception.removeprefix("builtins."),
        message=_text(entry.get("message")),
        traceback=_text(entry.get("traceback")),
        sentry_event_id=_text(entry.get("sentry_event_id")),
    )


def _as_the_last(attempt: Attempt, job: Job, operations: Sequence[Operation]) -> Attempt:
    """The last attempt with an error. It counts as discarded if the job is, unless an operator discarded it later."""
    if job.status != Status.DISCARDED:
        return attempt
    if operations and operations[-1].finished_the_job:
        was_stuck = was_cancelled(job, attempt.ended_at)
        return replace(attempt, status=Status.DISCARDED, is_cancelled=True) if was_stuck else attempt
    is_newest = attempt.number == job.attempts + attempts_before(operations, None)
    return (
        replace(attempt, status=Status.DISCARDED) if is_newest and _has_last_error(attempt, job.last_error) else attempt
    )


def _has_last_error(attempt: Attempt, line: str) -> bool:
    return line.endswith(attempt.headline[:100]) if attempt.headline else True


def _without_error(job: Job, operations: Sequence[Operation], newest: int) -> Iterator[Attempt]:
    """The last attempt, if it has no error in the row. `newest` is the number of the last one with an error."""
    number = job.attempts + attempts_before(operations, None)
    cancel = operations[-1] if operations and operations[-1].verb == CANCEL.name else None
    is_cancelled = job.status == Status.DISCARDED and cancel is not None and job.attempts > 0 and number > newest
    if job.started_at is None or not (is_cancelled or job.status in (Status.RUNNING, Status.COMPLETED)):
        return
    ended_at = cancel.at if cancel and is_cancelled else job.finished_at
    yield Attempt(
        number=number,
        status=job.status,
        is_cancelled=is_cancelled,
        worker=job.locked_by,
        duration=ended_at - job.started_at if ended_at else None,
        started_at=job.started_at,
        ended_at=ended_at,
        waited=job.started_at - job.run_after if job.started_at >= job.run_after else None,
    )


def _span(milliseconds: object) -> timedelta | None:
    if not isinstance(milliseconds, int | float):
        return None
    try:
        return timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
