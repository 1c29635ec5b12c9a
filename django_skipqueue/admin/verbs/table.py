"""The table of verbs: everything that operators can do to jobs.

Buttons, actions, permissions, questions, history and log entries derive from it: a verb that `Store` has is one entry
here, and one in `VERBS`. Only the button "Delete…" of a job's page is Django's own, in its template.
"""

from collections.abc import Collection, Iterable

from django.contrib.admin.models import DELETION
from django.db import transaction
from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ...models import FINISHED, UNFINISHED, WAITING, Job, Status
from ...store import Store
from .copy_job import copy_jobs
from .forms import DeleteForm, Instruction, PostponeForm, SpreadForm
from .verb import Action, Button, Changed, Past, Verb


def _changed(ids: Iterable[int]) -> Changed:
    """These jobs, each with itself to show next."""
    return {pk: pk for pk in ids}


RETRY = Verb(
    name="retry",
    permission="retry",
    statuses={Status.FAILED, Status.DISCARDED},
    change=lambda ids, instruction: _changed(
        Store.default().retry(ids, over=instruction.delay, by=instruction.user, reason=instruction.reason)
    ),
    form=SpreadForm,
    button=Button(
        label=_("Retry"),
        hint=_("Put this job back into its queue, with a fresh set of attempts."),
        question_title=_("Retry job %(id)s"),
        done=_("Job %(id)s is back in the queue “%(queue)s”."),
        asks=False,
        is_primary=True,
    ),
    action=Action(
        label=_("Retry selected %(verbose_name_plural)s"),
        explanation=_(
            "Failed and discarded jobs go back into their queues, with a fresh set of attempts. "
            "A job stays as it is while another that is not finished holds its unique key."
        ),
        question_title=ngettext_lazy("Retry %(number)s job", "Retry %(number)s jobs", "count"),
        question_title_partial=_("Retry %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy("This job cannot be retried.", "None of these %(number)s jobs can be retried.", "count"),
        done=ngettext_lazy(
            "%(number)s job was put back into its queue.", "%(number)s jobs were put back into their queues.", "count"
        ),
    ),
    past=Past(done=_("retried"), done_by=_("retried by %(user)s"), leads_to=Status.QUEUED),
    log_entry=_("Retried."),
)

RUN_NOW = Verb(
    name="run_now",
    permission="retry",
    statuses={Status.SCHEDULED},
    change=lambda ids, instruction: _changed(
        Store.default().run_now(ids, by=instruction.user, reason=instruction.reason)
    ),
    button=Button(
        label=_("Run now"),
        hint=_("Put this job into its queue now. The attempts that it has had stay counted."),
        question_title=_("Run job %(id)s now"),
        done=_("Job %(id)s is due now."),
        asks=False,
    ),
    action=Action(
        label=_("Run selected %(verbose_name_plural)s now"),
        explanation=_(
            "Scheduled and retrying jobs go into their queues now. The attempts that they have had stay counted."
        ),
        question_title=ngettext_lazy("Run %(number)s job now", "Run %(number)s jobs now", "count"),
        question_title_partial=_("Run %(some)s of %(number)s jobs now"),
        refusal=ngettext_lazy(
            "This job does not wait for a time.", "None of these %(number)s jobs waits for a time.", "count"
        ),
        done=ngettext_lazy("%(number)s job is due now.", "%(number)s jobs are due now.", "count"),
    ),
    past=Past(done=_("made due"), done_by=_("made due by %(user)s"), leads_to=Status.QUEUED),
    log_entry=_("Made due."),
)


def _why_not_postponed(job: Job, instruction: Instruction) -> str:
    due_later = Job.objects.scheduled().filter(pk=job.pk, run_after__gte=Now() + instruction.delay)
    return gettext("Job %(id)s is due later than that already.") % {"id": job.pk} if due_later.exists() else ""


POSTPONE = Verb(
    name="postpone",
    permission="retry",
    statuses=WAITING,
    change=lambda ids, instruction: _changed(
        Store.default().postpone(ids, instruction.delay, by=instruction.user, reason=instruction.reason)
    ),
    why_unchanged=_why_not_postponed,
    form=PostponeForm,
    button=Button(
        label=_("Postpone"),
        hint=_("This job waits, and runs later."),
        question_title=_("Postpone job %(id)s"),
        done=_("Job %(id)s is due in %(delay)s."),
    ),
    action=Action(
        label=_("Postpone selected %(verbose_name_plural)s"),
        explanation=_("Scheduled, retrying and queued jobs wait. A job that is due later anyway stays as it is."),
        question_title=ngettext_lazy("Postpone %(number)s job", "Postpone %(number)s jobs", "count"),
        question_title_partial=_("Postpone %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy(
            "This job cannot be postponed.", "None of these %(number)s jobs can be postponed.", "count"
        ),
        done=ngettext_lazy("%(number)s job was postponed.", "%(number)s jobs were postponed.", "count"),
    ),
    past=Past(done=_("postponed"), done_by=_("postponed by %(user)s"), leads_to=Status.SCHEDULED),
    log_entry=_("Postponed."),
)

DISCARD = Verb(
    name="discard",
    permission="discard",
    statuses=WAITING,
    change=lambda ids, instruction: _changed(
        Store.default().discard(ids, by=instruction.user, reason=instruction.reason)
    ),
    button=Button(
        label=_("Discard"),
        hint=_("Finish this job without running it. It can be retried later."),
        question_title=_("Discard job %(id)s"),
        done=_("Job %(id)s is discarded."),
    ),
    action=Action(
        label=_("Discard selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs are finished without being run. A running job is left alone. "
            "A discarded job can be retried later."
        ),
        question_title=ngettext_lazy("Discard %(number)s job", "Discard %(number)s jobs", "count"),
        question_title_partial=_("Discard %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy(
            "This job cannot be discarded.", "None of these %(number)s jobs can be discarded.", "count"
        ),
        done=ngettext_lazy("%(number)s job was discarded.", "%(number)s jobs were discarded.", "count"),
    ),
    past=Past(done=_("discarded"), done_by=_("discarded by %(user)s"), leads_to=Status.DISCARDED),
    log_entry=_("Discarded."),
)

CANCEL = Verb(
    name="cancel",
    permission="discard",
    statuses=UNFINISHED,
    offered_for={Status.RUNNING},  # to a job that waits, Discard does the same
    change=lambda ids, instruction: _changed(
        Store.default().cancel(ids, by=instruction.user, reason=instruction.reason)
    ),
    is_dangerous=True,
    button=Button(
        label=_("Cancel"),
        hint=_("Interrupt this job and discard it. What its task has done already stays done."),
        question_title=_("Cancel job %(id)s"),
        done=_("Job %(id)s is cancelled; its task ends within a second or two."),
    ),
    action=Action(
        label=_("Cancel selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are discarded. Those that run are interrupted within a second or two; "
            "what their tasks have done already stays done."
        ),
        question_title=ngettext_lazy("Cancel %(number)s job", "Cancel %(number)s jobs", "count"),
        question_title_partial=_("Cancel %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy(
            "This job cannot be cancelled.", "None of these %(number)s jobs can be cancelled.", "count"
        ),
        done=ngettext_lazy("%(number)s job was cancelled.", "%(number)s jobs were cancelled.", "count"),
    ),
    past=Past(done=_("cancelled"), done_by=_("cancelled by %(user)s"), leads_to=Status.DISCARDED),
    log_entry=_("Cancelled."),
)


def _delete(ids: Collection[int]) -> Changed:
    """Lock, then delete: a job that a worker claims in between is either locked, or running and left alone."""
    with transaction.atomic(using=Job.objects.all().db):
        jobs = Job.objects.filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
        deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
        Job.objects.filter(pk__in=deleted).delete()
    return _changed(deleted)


DELETE = Verb(
    name="delete",
    permission="delete",
    statuses=set(Status.values) - {Status.RUNNING},
    change=lambda ids, _instruction: _delete(ids),
    form=DeleteForm,
    is_dangerous=True,
    action=Action(
        label=_("Delete selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are removed for good, with their arguments, results and errors. "
            "Those that wait will not run. A running job is left alone."
        ),
        question_title=ngettext_lazy("Delete %(number)s job", "Delete %(number)s jobs", "count"),
        question_title_partial=_("Delete %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy("This job cannot be deleted.", "None of these %(number)s jobs can be deleted.", "count"),
        done=ngettext_lazy("%(number)s job was deleted.", "%(number)s jobs were deleted.", "count"),
    ),
    log_entry=_("Deleted."),
    log_flag=DELETION,
)

RUN_AGAIN = Verb(
    name="run_again",
    permission="add",  # a copy is a new job
    statuses=FINISHED,
    change=lambda ids, _instruction: copy_jobs(ids),
    button=Button(
        label=_("Run again as a new job"),
        hint=_(
            "A copy of this job is enqueued, and this one stays as it is. "
            "The task runs once more with the same arguments: what it charged, sent or wrote, it does again."
        ),
        question_title=_("Run job %(id)s again, as a new job"),
        done=_("This is job %(copy)s, a copy of job %(id)s."),
    ),
    log_entry=_("Run again as job %(copy)s."),
    log_entry_of_copy=_("Copied from job %(id)s."),
)

VERBS = (RETRY, RUN_NOW, POSTPONE, DISCARD, CANCEL, DELETE, RUN_AGAIN)
"""In the order of the buttons and of the actions."""

BUTTONS = tuple((verb, verb.button) for verb in VERBS if verb.button)

ACTIONS = {verb.action_name: (verb, verb.action) for verb in VERBS if verb.action}

PAST = {verb.name: verb.past for verb in VERBS if verb.past}
