"""Who did what to jobs: entries in Django's log of admin actions, and what there and in its row is told of one job.

The log is in the project's default database, wherever the queue is. What operators do to a job stands in its row, also
when they did it to many at once, or without the admin; what has no verb (a copy) stands in the log alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest

from ..models import Job
from .operations import Operation, operations_of

SHOWN = 200
"""Entries of the log that are read for one job."""

SAME_ACT = timedelta(seconds=5)
"""How far apart the row and the log may tell of the same thing: the log goes by the clock of the web server."""


@dataclass(frozen=True)
class Entry:
    """One thing that somebody did to a job."""

    at: datetime
    by: str
    text: str
    reason: str = ""


def history_of(job: Job) -> list[Entry]:
    """The newest first. An operation that stands in the row and in Django's log is listed once."""
    logged = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Job), object_id=str(job.pk))
    entries = list(logged.select_related("user").order_by("-action_time")[:SHOWN])
    told: list[Entry] = []
    for operation in reversed(operations_of(job)):
        told.append(Entry(operation.at, operation.by, operation.word, operation.reason))
        if twin := _twin(operation, entries):
            entries.remove(twin)
    told += (Entry(entry.action_time, entry.user.get_username(), entry.get_change_message()) for entry in entries)
    return sorted(told, key=lambda entry: entry.at, reverse=True)


def record(request: HttpRequest, jobs: Mapping[int, str], message: str, *, flag: int = CHANGE) -> None:
    """One entry for each job: ids, and what they are called."""
    LogEntry.objects.bulk_create(_entry(request, message, flag, str(pk), name) for pk, name in jobs.items())


def record_many(request: HttpRequest, name: str, message: str, *, flag: int = CHANGE) -> None:
    """One entry for as many jobs as `name` says."""
    _entry(request, message, flag, None, name).save()


def names_of(ids: Iterable[int]) -> dict[int, str]:
    """What these jobs are called."""
    return {job.pk: str(job) for job in Job.objects.filter(pk__in=ids).only("pk", "task")}


def _twin(operation: Operation, entries: Iterable[LogEntry]) -> LogEntry | None:
    """The entry of the log that means this operation: the nearest one of the same user, if it is near."""

    def distance(entry: LogEntry) -> timedelta:
        return abs(entry.action_time - operation.at)

    own = (each for each in entries if each.user.get_username() == operation.by and distance(each) <= SAME_ACT)
    return min(own, key=distance, default=None)


def _entry(request: HttpRequest, message: str, flag: int, object_id: str | None, name: str) -> LogEntry:
    return LogEntry(
        user_id=request.user.pk,  # type: ignore[misc]  # nobody gets here without logging in
        content_type=ContentType.objects.get_for_model(Job),
        object_id=object_id,
        object_repr=name[:200],
        action_flag=flag,
        change_message=message,
    )
