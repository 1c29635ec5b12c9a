"""Entries in Django's log of admin actions.

The log is in the project's default database, wherever the queue is.
"""

from collections.abc import Iterable, Mapping

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest

from ...models import Job


def record(request: HttpRequest, jobs: Mapping[int, str], message: str, *, flag: int = CHANGE) -> None:
    """Write an entry for each of the jobs: ids with their names."""
    LogEntry.objects.bulk_create(_entry(request, message, flag, str(pk), name) for pk, name in jobs.items())


def record_all(request: HttpRequest, name: str, message: str, *, flag: int = CHANGE) -> None:
    """Write one entry for all the jobs that `name` describes."""
    _entry(request, message, flag, None, name).save()


def job_names(ids: Iterable[int]) -> dict[int, str]:
    """The names of these jobs."""
    return {job.pk: str(job) for job in Job.objects.filter(pk__in=ids).only("pk", "task")}


def _entry(request: HttpRequest, message: str, flag: int, object_id: str | None, name: str) -> LogEntry:
    return LogEntry(
        user_id=request.user.pk,  # type: ignore[misc]  # the views need a login
        content_type=ContentType.objects.get_for_model(Job),
        object_id=object_id,
        object_repr=name[:200],
        action_flag=flag,
        change_message=message,
    )
