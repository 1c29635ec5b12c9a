"""The verbs for jobs that wait: when they run, from which queue, and in which order."""

from operator import attrgetter

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ....models import WAITING, Job, Status
from ....queue.store import Store
from .forms import Instruction, PostponeForm, PriorityForm, QueueForm, RescheduleForm
from .verb import Action, Button, Past, Verb, by_store

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


def _why_not_moved(job: Job, instruction: Instruction) -> str:
    is_there = job.queue_name == instruction.queue_name
    return gettext("Job %(id)s is in this queue already.") % {"id": job.pk} if is_there else ""


CHANGE_QUEUE = Verb(
    name="change_queue",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.change_queue, queue_name=attrgetter("queue_name")),
    why_unchanged=_why_not_moved,
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


def _why_not_changed(job: Job, instruction: Instruction) -> str:
    has_it = job.priority == instruction.priority
    return gettext("Job %(id)s has this priority already.") % {"id": job.pk} if has_it else ""


CHANGE_PRIORITY = Verb(
    name="change_priority",
    permission="retry",
    statuses=WAITING,
    change=by_store(Store.change_priority, priority=attrgetter("priority")),
    why_unchanged=_why_not_changed,
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
