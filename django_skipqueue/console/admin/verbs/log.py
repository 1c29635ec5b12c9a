"""Entries in Django's log of admin actions. The log is in the project's default database, wherever the queue is."""

from collections.abc import Mapping
from urllib.parse import unquote_plus

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest
from django.utils.translation import gettext

from ....models import Job
from ..ui.views import logged_id
from .verb import Instruction, Verb


def record(request: HttpRequest, jobs: Mapping[int, str], message: str, *, flag: int = CHANGE) -> None:
    LogEntry.objects.bulk_create(_entry(request, message, flag, logged_id(pk), name) for pk, name in jobs.items())


def record_all(request: HttpRequest, verb: Verb, message: str, instruction: Instruction) -> None:
    # To be read, and to be typed after the address of a list. Without NUL, as the filters.
    searched = f"?{unquote_plus(request.GET.urlencode())}".replace("\0", "")
    name = gettext("all jobs matching %(filter)s") % {"filter": searched}
    filtered = gettext("Filter: %(filter)s") % {"filter": searched}
    entry = with_reason(f"{message} {filtered}", instruction)
    _entry(request, entry, verb.log_flag, None, name).save()


def record_other(request: HttpRequest, name: str, message: str) -> None:
    """Record what was done to something of the queue that is no row of a model here."""
    _entry(request, message, CHANGE, None, name).save()


def with_reason(entry: str, instruction: Instruction) -> str:
    if not instruction.reason:
        return entry
    reason = gettext("Reason: %(reason)s") % {"reason": instruction.reason}
    return f"{entry} {reason}"


def _entry(request: HttpRequest, message: str, flag: int, object_id: str | None, name: str) -> LogEntry:
    return LogEntry(
        user_id=request.user.pk,  # type: ignore[misc]  # the views need a login
        content_type=ContentType.objects.get_for_model(Job),
        object_id=object_id,
        object_repr=name[:200],
        action_flag=flag,
        change_message=message,
    )
