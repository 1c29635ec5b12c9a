"""The attempts of a job for Django's task result, made from the job's row.

Invariant: there is a worker id for each charged attempt, even if the row no longer has its error. Attempts before a
manual retry are left out: it starts again at attempt 1, and earlier errors belong to the row's history.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils.timezone import make_naive

from ...models import Job
from .framework import TaskError

Entry = dict[str, Any]
"""One failed attempt: an item of the job's `errors`."""

FORGOTTEN = ""
"""In place of a worker's id, for an attempt whose error the row no longer has: it keeps the last ten."""


class Attempts:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._failed = _failed(job)

    @property
    def worker_ids(self) -> list[str]:
        return [self._worker_id(number) for number in range(1, self._job.attempts + 1)]

    @property
    def errors(self) -> list[TaskError]:
        return [
            TaskError(exception_class_path=entry["exception"], traceback=entry["traceback"] or _line(entry))
            for entry in self._failed.values()
        ]

    @property
    def started_at(self) -> datetime | None:
        """The start of the first attempt, or of the first that the row still has."""
        if self._job.attempts > 1 and self._failed:
            return _started_at(next(iter(self._failed.values())))
        return self.last_attempted_at

    @property
    def last_attempted_at(self) -> datetime | None:
        if not self._job.attempts:
            return None
        if self._job.started_at is None and self._failed:  # claimed again since then, and released
            return _started_at(self._failed[max(self._failed)])
        return self._job.started_at

    def _worker_id(self, number: int) -> str:
        if number in self._failed:
            entry = self._failed[number]
            return str(entry.get("worker_id", entry["worker"]))
        return self._job.locked_by if number == self._job.attempts else FORGOTTEN


def _failed(job: Job) -> dict[int, Entry]:
    """The failed attempts since the last manual retry, by number: read backwards, the numbers fall until that retry."""
    found: dict[int, Entry] = {}
    # An attempt that runs or was completed has no entry: one with its number is older than the last manual retry.
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
