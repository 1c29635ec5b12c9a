"""The attempts that a job's row remembers, as Django counts them.

Invariant: one worker id for each attempt charged, whatever the row has forgotten; and only attempts of the job's
present life. A manual retry starts at attempt 1 again; what was before is the row's history, not part of its result.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils.timezone import make_naive

from ..models import Job
from .framework import TaskError

Entry = dict[str, Any]
"""One failed attempt, as it stands in the job's `errors`."""

FORGOTTEN = ""
"""The id of a worker whose attempt is no longer among the errors, of which a row keeps the last ten."""


class Attempts:
    """What became of each attempt of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._failed = _failed(job)

    @property
    def worker_ids(self) -> list[str]:
        """One for each attempt, the first attempt first."""
        return [self._worker_id(number) for number in range(1, self._job.attempts + 1)]

    @property
    def errors(self) -> list[TaskError]:
        """One for each failed attempt that the row still knows."""
        return [
            TaskError(exception_class_path=entry["exception"], traceback=entry["traceback"] or _line(entry))
            for entry in self._failed.values()
        ]

    @property
    def started_at(self) -> datetime | None:
        """When the first attempt began, or the first that the row still knows."""
        if self._job.attempts > 1 and self._failed:
            return _started_at(next(iter(self._failed.values())))
        return self.last_attempted_at

    @property
    def last_attempted_at(self) -> datetime | None:
        """When the last attempt began."""
        if not self._job.attempts:
            return None
        if self._job.started_at is None and self._failed:  # claimed again since then, and given back
            return _started_at(self._failed[max(self._failed)])
        return self._job.started_at

    def _worker_id(self, number: int) -> str:
        if number in self._failed:
            entry = self._failed[number]
            return str(entry.get("worker_id", entry["worker"]))
        return self._job.locked_by if number == self._job.attempts else FORGOTTEN


def _failed(job: Job) -> dict[int, Entry]:
    """The failed attempts of the present life, by their number: going back, the numbers fall until a life begins."""
    found: dict[int, Entry] = {}
    # A run that is under way, or that went well, has no entry: one of its number is of an earlier life.
    limit = job.attempts if job.status in ("running", "completed") else job.attempts + 1
    for entry in reversed(job.errors):
        number = entry["attempt"] or job.attempts
        if number >= limit:
            break
        found[number] = entry
        limit = number
    return dict(reversed(found.items()))


def _started_at(entry: Entry) -> datetime:
    began = datetime.fromisoformat(entry["at"]) - timedelta(milliseconds=entry["duration_ms"])
    return began if settings.USE_TZ else make_naive(began)


def _line(entry: Entry) -> str:
    return f"{entry['exception']}: {entry['message']}\n"
