"""Entries in Django's admin log. The log is in the project's default database, even if the queue is in another one."""

from collections.abc import Iterable
from urllib.parse import unquote_plus

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest
from django.utils.translation import gettext

from ....models import Job
from ...verbs.verb import Verb
from ..ui.views import logged_id
from .one_job import LoggedChange


def record(request: HttpRequest, entries: Iterable[LoggedChange], *, verb: Verb, reason: str = "") -> None:
    flag = _action_flag(verb)
    LogEntry.objects.bulk_create(
        _log_entry(request, flag, _with_reason(entry.message, reason), logged_id(entry.job_id), entry.name)
        for entry in entries
    )


def record_all(request: HttpRequest, verb: Verb, message: str, reason: str) -> None:
    # The query string is readable, and can be appended to a list's URL. The filters remove NUL characters too.
    query_string = f"?{unquote_plus(request.GET.urlencode())}".replace("\0", "")
    name = gettext("all jobs matching %(filter)s") % {"filter": query_string}
    filter_sentence = gettext("Filter: %(filter)s") % {"filter": query_string}
    _log_entry(request, _action_flag(verb), _with_reason(f"{message} {filter_sentence}", reason), None, name).save()


def record_other(request: HttpRequest, name: str, message: str) -> None:
    """Record a change to something that has no row in the queue's tables."""
    _log_entry(request, CHANGE, message, None, name).save()


def _with_reason(message: str, reason: str) -> str:
    if not reason:
        return message
    text = gettext("Reason: %(reason)s") % {"reason": reason}
    return f"{message} {text}"


def _action_flag(verb: Verb) -> int:
    return CHANGE if verb.leaves_rows else DELETION


def _log_entry(request: HttpRequest, flag: int, message: str, object_id: str | None, name: str) -> LogEntry:
    return LogEntry(
        user_id=request.user.pk,  # type: ignore[misc]  # the views need a login
        content_type=ContentType.objects.get_for_model(Job),
        object_id=object_id,
        object_repr=name[:200],
        action_flag=flag,
        change_message=message,
    )
