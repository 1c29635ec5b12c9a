"""Applying a verb to one job, by the button on its page, and its entry in Django's log of admin actions.

Invariant: the statement of the verb decides. A status that was read before says only which buttons to show; the change
of a job that no longer allows it is refused, and the message says why.

The log is in the project's default database, wherever the queue is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest
from django.utils.translation import gettext

from ....models import Job
from ....parts.databases.addresses import logged_id
from ....values.codec import shorten
from ...durations import exact
from ...waiting import why_its_key_is_taken
from .forms import Instruction
from .verb import Button, Text, Verb


def record(request: HttpRequest, jobs: Mapping[int, str], message: str, *, flag: int = CHANGE) -> None:
    LogEntry.objects.bulk_create(_entry(request, message, flag, logged_id(pk), name) for pk, name in jobs.items())


def record_all(request: HttpRequest, verb: Verb, message: str, instruction: Instruction) -> None:
    searched = filter_of(request)
    name = gettext("all jobs matching %(filter)s") % {"filter": searched}
    filtered = gettext("Filter: %(filter)s") % {"filter": searched}
    entry = with_reason(f"{message} {filtered}", instruction)
    _entry(request, entry, verb.log_flag, None, name).save()


def filter_of(request: HttpRequest) -> str:
    """The query of a list's address, to be read, and to be typed after that address. Without NUL, as the filters."""
    return f"?{unquote_plus(request.GET.urlencode())}".replace("\0", "")


def with_reason(entry: str, instruction: Instruction) -> str:
    if not instruction.reason:
        return entry
    reason = gettext("Reason: %(reason)s") % {"reason": instruction.reason}
    return f"{entry} {reason}"


def job_names(ids: Iterable[int]) -> dict[int, str]:
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


TEXT_LIMIT = 200
"""Characters of a name in a message."""


@dataclass(frozen=True)
class Result:
    message: str
    shown_id: int
    """The id of the job to show next."""
    log_entries: tuple[tuple[int, str, str], ...] = ()
    """Id and name of each job that was changed or made, and the entry for it; empty where nothing was done."""


def apply(verb: Verb, button: Button, job: Job, instruction: Instruction) -> Result:
    changed = verb.change([job.pk], instruction)
    if job.pk not in changed:
        return Result(_refusal(verb, button, job, instruction), job.pk)
    shown_id = changed[job.pk]
    values = {
        "id": job.pk,
        "copy": shown_id,
        "queue": shorten(job.queue_name, TEXT_LIMIT),
        "time": exact(instruction.run_after) if instruction.run_after else "",
        "new_queue": shorten(instruction.queue_name, TEXT_LIMIT),
        "priority": instruction.priority,
    }
    entries = [(job.pk, str(job), _filled(verb.log_entry, values))]
    if shown_id != job.pk:
        entries.append((shown_id, str(Job(pk=shown_id, task=job.task)), _filled(verb.log_entry_of_copy, values)))
    return Result(_filled(button.done, values), shown_id, tuple(entries))


def _refusal(verb: Verb, button: Button, job: Job, instruction: Instruction) -> str:
    now = Job.objects.filter(pk=job.pk).first()
    if now is None:
        return gettext("Job %(id)s was deleted meanwhile.") % {"id": job.pk}
    if now.status not in verb.statuses and not verb.fits(now):
        return does_not_fit(button, now)
    if verb.why_unchanged and (reason := verb.why_unchanged(job, instruction)):
        return reason
    if reason := why_its_key_is_taken(job.pk):
        return reason
    values = {"id": job.pk, "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is changing right now. Try again.") % values


def does_not_fit(button: Button, job: Job) -> str:
    values = {"id": job.pk, "status": job.get_status_display(), "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is %(status)s now.") % values


def _filled(text: Text, values: Mapping[str, Any]) -> str:
    return str(text) % values
