"""Applying a verb to one job, by the button on its page.

Invariant: the statement of the verb decides. A status that was read before says only which buttons to show; the change
of a job that no longer allows it is refused, and the message says why.
"""

from dataclasses import dataclass

from django.utils.translation import gettext

from ....models import Job
from ....values.codec import shorten
from ...durations import exact
from ...parts import why_unchanged
from .verb import Button, Instruction, Verb

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
    entries = [(job.pk, str(job), str(verb.log_entry) % values)]
    if shown_id != job.pk:
        entries.append((shown_id, str(Job(pk=shown_id, task=job.task)), str(verb.log_entry_of_copy) % values))
    return Result(str(button.done) % values, shown_id, tuple(entries))


def _refusal(verb: Verb, button: Button, job: Job, instruction: Instruction) -> str:
    now = Job.objects.filter(pk=job.pk).first()
    if now is None:
        return gettext("Job %(id)s was deleted meanwhile.") % {"id": job.pk}
    if now.status not in verb.statuses and not verb.fits(now):
        return does_not_fit(button, now)
    if verb.why_unchanged and (reason := verb.why_unchanged(job, instruction)):
        return reason
    if reason := why_unchanged(job.pk):
        return reason
    values = {"id": job.pk, "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is changing right now. Try again.") % values


def does_not_fit(button: Button, job: Job) -> str:
    values = {"id": job.pk, "status": job.get_status_display(), "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is %(status)s now.") % values
