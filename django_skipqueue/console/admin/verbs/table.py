"""The table of verbs: everything that operators can do to jobs.

Buttons, actions, permissions, questions, history and log entries derive from it: a verb that `Store` has is one entry
here, and one in `VERBS`. Only the button "Delete…" of a job's page is Django's own, in its template.
"""

from collections.abc import Callable
from operator import attrgetter

from django.contrib.admin.models import DELETION
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from ....models import FINISHED, UNFINISHED, WAITING, Job, Status
from ....queue.store import Store
from ...parts import consoles
from ...search import delete_jobs
from .copies import copy_jobs, why_held_elsewhere, why_not_copied
from .verb import (
    Action,
    Button,
    DeleteForm,
    Instruction,
    Past,
    PostponeForm,
    PriorityForm,
    QueueForm,
    RescheduleForm,
    SpreadForm,
    Text,
    Verb,
    by_store,
)

RETRY = Verb(
    name="retry",
    permission="retry",
    statuses={Status.FAILED, Status.DISCARDED},
    change=by_store(Store.retry, over=attrgetter("delay")),
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


DISCARD = Verb(
    name="discard",
    permission="discard",
    statuses=WAITING,
    also_for=lambda job: (
        job.status == Status.FAILED and any(each.holds_up(job) for each in consoles() if each.holds_up)
    ),
    change=by_store(Store.discard),
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
    change=by_store(Store.cancel),
    is_dangerous=True,
    button=Button(
        label=_("Cancel"),
        hint=_("Interrupt this job and discard it. What its task has done already stays done."),
        question_title=_("Cancel job %(id)s"),
        done=_("Job %(id)s is cancelled; its task ends within a second or two."),
        hint_if_external=_("Discard this job. If it has begun, it is not interrupted, and its outcome is dropped."),
        done_if_external=_("Job %(id)s is cancelled. If it has begun, it runs on, and its outcome is dropped."),
    ),
    action=Action(
        label=_("Cancel selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are discarded. Those that run are interrupted within a second or two; "
            "what their tasks have done already stays done."
        ),
        about_external=_("A job that has begun outside of the workers is not interrupted, and its outcome is dropped."),
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


DELETE = Verb(
    name="delete",
    permission="delete",
    statuses=set(Status.values) - {Status.RUNNING},
    change=lambda ids, _instruction: {pk: pk for pk in delete_jobs(ids)},
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
    why_unchanged=lambda job, _instruction: why_not_copied(job) or why_held_elsewhere(job),
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


RUN_NOW = Verb(
    name="run_now",
    permission="retry",
    statuses={Status.SCHEDULED},
    change=by_store(Store.run_now),
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


POSTPONE = Verb(
    name="postpone",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.postpone, run_after=attrgetter("delay")),
    form=PostponeForm,
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

RESCHEDULE = Verb(
    name="reschedule",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.reschedule, run_after=lambda instruction: instruction.run_after or instruction.delay),
    form=RescheduleForm,
    button=Button(
        label=_("Reschedule"),
        hint=_(
            "Choose the time at which this job is due, earlier or later. The attempts that it has had stay counted."
        ),
        question_title=_("Reschedule job %(id)s"),
        done=_("Job %(id)s is due at %(time)s."),
    ),
    past=Past(done=_("rescheduled"), done_by=_("rescheduled by %(user)s"), leads_to=Status.SCHEDULED),
    log_entry=_("Rescheduled."),
)


def _why_it_has(value: str, message: Text) -> Callable[[Job, Instruction], str]:
    """This message for a job that has the instructed value of this name already."""
    return lambda job, told: str(message) % {"id": job.pk} if getattr(job, value) == getattr(told, value) else ""


CHANGE_QUEUE = Verb(
    name="change_queue",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.change_queue, queue_name=attrgetter("queue_name")),
    why_unchanged=_why_it_has("queue_name", _("Job %(id)s is in this queue already.")),
    form=QueueForm,
    button=Button(
        label=_("Change queue"),
        hint=_("This job goes into another queue, and keeps its due time and its priority."),
        question_title=_("Change the queue of job %(id)s"),
        done=_("Job %(id)s is in the queue “%(new_queue)s” now."),
    ),
    action=Action(
        label=_("Change the queue of selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs go into another queue, and keep their due times and priorities. "
            "A running job is left alone."
        ),
        question_title=ngettext_lazy(
            "Change the queue of %(number)s job", "Change the queue of %(number)s jobs", "count"
        ),
        question_title_partial=_("Change the queue of %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy(
            "The queue of this job cannot be changed.",
            "The queue of none of these %(number)s jobs can be changed.",
            "count",
        ),
        done=ngettext_lazy("%(number)s job is in another queue.", "%(number)s jobs are in another queue.", "count"),
    ),
    past=Past(
        done=_("put into another queue"), done_by=_("put into another queue by %(user)s"), leads_to=Status.QUEUED
    ),
    log_entry=_("Queue changed."),
)


CHANGE_PRIORITY = Verb(
    name="change_priority",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.change_priority, priority=attrgetter("priority")),
    why_unchanged=_why_it_has("priority", _("Job %(id)s has this priority already.")),
    form=PriorityForm,
    button=Button(
        label=_("Change priority"),
        hint=_("This job is claimed before the jobs of its queue that have a lower priority."),
        question_title=_("Change the priority of job %(id)s"),
        done=_("Job %(id)s has the priority %(priority)s now."),
    ),
    action=Action(
        label=_("Change the priority of selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs get another priority: within a queue, those with a higher one are "
            "claimed first. A running job is left alone."
        ),
        question_title=ngettext_lazy(
            "Change the priority of %(number)s job", "Change the priority of %(number)s jobs", "count"
        ),
        question_title_partial=_("Change the priority of %(some)s of %(number)s jobs"),
        refusal=ngettext_lazy(
            "The priority of this job cannot be changed.",
            "The priority of none of these %(number)s jobs can be changed.",
            "count",
        ),
        done=ngettext_lazy("%(number)s job has another priority.", "%(number)s jobs have another priority.", "count"),
    ),
    past=Past(
        done=_("given another priority"), done_by=_("given another priority by %(user)s"), leads_to=Status.QUEUED
    ),
    log_entry=_("Priority changed."),
)


VERBS = (RETRY, RUN_NOW, POSTPONE, RESCHEDULE, CHANGE_QUEUE, CHANGE_PRIORITY, DISCARD, CANCEL, DELETE, RUN_AGAIN)
"""In the order of the buttons and of the actions."""

BUTTONS = tuple((verb, verb.button) for verb in VERBS if verb.button)

ACTIONS = {verb.action_name: (verb, verb.action) for verb in VERBS if verb.action}

PAST = {verb.name: verb.past for verb in VERBS if verb.past}
