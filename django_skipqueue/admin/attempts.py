"""The attempts of a job, as its row tells them: the failed ones it has kept, and the one that runs or succeeded.

The entries were written by a worker, but a worker of any version: what is missing or of another kind shows as nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.dateparse import parse_datetime

from ..models import Job, Status
from .durations import span


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of a job."""

    number: int | None
    status: str
    """`failed`, or what the job came to in this attempt."""
    worker: str
    duration: timedelta | None
    ended_at: datetime | None
    exception: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def label(self) -> Any:
        """The status as a word."""
        return Status(self.status).label

    @property
    def took(self) -> str:
        """The duration in words."""
        return "" if self.duration is None else span(self.duration)


def attempts_of(job: Job) -> list[Attempt]:
    """The newest first."""
    failed = [_failed(entry) for entry in job.errors if isinstance(entry, dict)]
    return [*_last(job), *reversed(failed)]


def _last(job: Job) -> Iterator[Attempt]:
    """The attempt that has left no error behind."""
    if job.started_at is None or job.status not in (Status.RUNNING, Status.COMPLETED):
        return
    yield Attempt(
        number=job.attempts,
        status=job.status,
        worker=job.locked_by,
        duration=job.finished_at - job.started_at if job.finished_at else None,
        ended_at=job.finished_at,
    )


def _failed(entry: Mapping[str, Any]) -> Attempt:
    number, duration, ended_at = entry.get("attempt"), entry.get("duration_ms"), entry.get("at")
    return Attempt(
        number=number if isinstance(number, int) else None,
        status=Status.FAILED,
        worker=_text(entry.get("worker")),
        duration=timedelta(milliseconds=duration) if isinstance(duration, int | float) else None,
        ended_at=parse_datetime(ended_at) if isinstance(ended_at, str) else None,
        exception=_text(entry.get("exception")),
        message=_text(entry.get("message")),
        traceback=_text(entry.get("traceback")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
