"""The table of verbs: everything that operators can do to jobs.

The admin derives its buttons, actions, questions, history and log entries from it, and the command line its
subcommands. Each verb is also a method of `Job` and of its query sets. Only the button "Delete…" of a job's page is
Django's own, in its template.
"""

from collections.abc import Callable, Collection

from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from ...conf import settings
from ...models import FINISHED, UNFINISHED, WAITING, Job, Status
from ...models.copies import copy_jobs, copy_refusal
from ...queue.store import Store
from ..parts import consoles, why_held_elsewhere
from .options import DELAY, OVER, PRIORITY, QUEUE_NAME, RUN_AFTER
from .verb import Action, Button, Instruction, Text, Verb


def delete_jobs(store: Store, ids: Collection[int]) -> set[int]:
    """Delete the jobs among these that do not run, with what parts keep about them. Returns the ids of these jobs.

    Locks the jobs before it deletes them: no worker can claim a locked job, and a job that runs by then is left alone.
    """
    with transaction.atomic(using=store.alias):
        jobs = Job.objects.using(store.alias).filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
        deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
        for part in consoles():
            if part.on_delete is not None:
                part.on_delete(deleted, jobs.db)
        Job.objects.using(store.alias).filter(pk__in=deleted).delete()
    return deleted


def run_again(store: Store, ids: Collection[int], *, by: str = "", reason: str = "") -> dict[int, int]:
    """Enqueue a copy of each job that is finished and whose unique key is free, also in other databases.

    Returns the ids of the jobs, each with the id of its copy.
    """
    jobs = Job.objects.using(store.alias).filter(pk__in=ids)
    held = [job.pk for job in jobs if why_held_elsewhere(job)] if settings.serves_several else []
    return copy_jobs(jobs.exclude(pk__in=held), by=by, reason=reason)


RETRY = Verb(
    name="retry",
    help="Put failed or discarded jobs back into their queues, with a fresh set of attempts",
    permission="retry",
    statuses={Status.FAILED, Status.DISCARDED},
    looked_for_in=(Status.FAILED,),
    options=(OVER,),
    change=Store.retry,
    exception="whose unique key another job holds, or that changed meanwhile",
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
        done=ngettext_lazy(
            "%(number)s job was put back into its queue.", "%(number)s jobs were put back into their queues.", "count"
        ),
    ),
    done=_("retried"),
    leads_to=Status.QUEUED,
)


DISCARD = Verb(
    name="discard",
    help="Finish waiting jobs without running them, and let a halted sequence go on without the job that failed",
    permission="discard",
    statuses=WAITING,
    fits_what_holds_up=True,
    change=Store.discard,
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
        done=ngettext_lazy("%(number)s job was discarded.", "%(number)s jobs were discarded.", "count"),
    ),
    done=_("discarded"),
    leads_to=Status.DISCARDED,
)

CANCEL = Verb(
    name="cancel",
    help="Discard waiting and running jobs; those that workers run are interrupted",
    permission="discard",
    statuses=UNFINISHED,
    offered_for={Status.RUNNING},  # to a job that waits, Discard does the same
    change=Store.cancel,
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
        done=ngettext_lazy("%(number)s job was cancelled.", "%(number)s jobs were cancelled.", "count"),
    ),
    done=_("cancelled"),
    leads_to=Status.DISCARDED,
)


DELETE = Verb(
    name="delete",
    help="Delete jobs for good, with their results and errors; running ones are left alone",
    permission="delete",
    statuses=set(Status.values) - {Status.RUNNING},
    looked_for_in=(),
    change=lambda store, ids, **_noted: delete_jobs(store, ids),  # no row is left for a note
    is_dangerous=True,
    leaves_rows=False,
    action=Action(
        label=_("Delete selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are removed for good, with their arguments, results and errors. "
            "Those that wait will not run. A running job is left alone."
        ),
        question_title=ngettext_lazy("Delete %(number)s job", "Delete %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was deleted.", "%(number)s jobs were deleted.", "count"),
    ),
    done=_("deleted"),
    leads_to=Status.DISCARDED,
)

RUN_AGAIN = Verb(
    name="run_again",
    help="Enqueue copies of finished jobs; what their tasks charged, sent or wrote, they do again",
    permission="add",  # a copy is a new job
    statuses=FINISHED,
    looked_for_in=(),
    change=run_again,
    exception="whose unique key another job holds, or that cannot be run again",
    why_unchanged=lambda job, _instruction: copy_refusal(job) or why_held_elsewhere(job),
    button=Button(
        label=_("Run again as a new job"),
        hint=_(
            "A copy of this job is enqueued, and this one stays as it is. "
            "The task runs once more with the same arguments: what it charged, sent or wrote, it does again."
        ),
        question_title=_("Run job %(id)s again, as a new job"),
        done=_("This is job %(copy)s, a copy of job %(id)s."),
    ),
    action=Action(
        label=_("Run selected %(verbose_name_plural)s again, as new jobs"),
        explanation=_(
            "Copies of the finished jobs are enqueued, and the jobs stay as they are. Their tasks run once more with "
            "the same arguments: what they charged, sent or wrote, they do again."
        ),
        question_title=ngettext_lazy("Run %(number)s job again", "Run %(number)s jobs again", "count"),
        done=ngettext_lazy(
            "%(number)s job was enqueued again, as a new job.",
            "%(number)s jobs were enqueued again, as new jobs.",
            "count",
        ),
    ),
    done=_("run again"),
    leads_to=Status.QUEUED,
    log_entry=_("Run again as job %(copy)s."),
    log_entry_of_copy=_("Copied from job %(id)s."),
)


RUN_NOW = Verb(
    name="run_now",
    help="Put scheduled and retrying jobs into their queues now",
    permission="retry",
    statuses={Status.SCHEDULED},
    change=Store.run_now,
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
        done=ngettext_lazy("%(number)s job is due now.", "%(number)s jobs are due now.", "count"),
    ),
    done=_("made due"),
    leads_to=Status.QUEUED,
)


POSTPONE = Verb(
    name="postpone",
    help="Let waiting jobs wait longer",
    permission="retry",
    statuses=WAITING,
    options=(DELAY,),
    change=Store.postpone,
    exception="due later anyway, or changed meanwhile",
    action=Action(
        label=_("Postpone selected %(verbose_name_plural)s"),
        explanation=_("Scheduled, retrying and queued jobs wait. A job that is due later anyway stays as it is."),
        question_title=ngettext_lazy("Postpone %(number)s job", "Postpone %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was postponed.", "%(number)s jobs were postponed.", "count"),
    ),
    done=_("postponed"),
    leads_to=Status.SCHEDULED,
)

RESCHEDULE = Verb(
    name="reschedule",
    help="Set the due time of waiting jobs, to an earlier or a later one",
    permission="retry",
    statuses=WAITING,
    options=(RUN_AFTER,),
    change=Store.reschedule,
    button=Button(
        label=_("Reschedule"),
        hint=_(
            "Choose the time at which this job is due, earlier or later. The attempts that it has had stay counted."
        ),
        question_title=_("Reschedule job %(id)s"),
        done=_("Job %(id)s is due at %(run_after)s."),
    ),
    action=Action(
        label=_("Reschedule selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs are due at this time, earlier or later. The attempts that they have "
            "had stay counted."
        ),
        question_title=ngettext_lazy("Reschedule %(number)s job", "Reschedule %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was rescheduled.", "%(number)s jobs were rescheduled.", "count"),
    ),
    done=_("rescheduled"),
    leads_to=Status.SCHEDULED,
)


def _why_it_has(value: str, message: Text) -> Callable[[Job, Instruction], str]:
    """Returns this message for a job that has the value of the option already."""
    return lambda job, given: str(message) % {"id": job.pk} if getattr(job, value) == given.options[value] else ""


CHANGE_QUEUE = Verb(
    name="change_queue",
    help="Put waiting jobs into another queue",
    permission="retry",
    statuses=WAITING,
    options=(QUEUE_NAME,),
    change=Store.change_queue,
    exception="in this queue already, or changed meanwhile",
    why_unchanged=_why_it_has("queue_name", _("Job %(id)s is in this queue already.")),
    button=Button(
        label=_("Change queue"),
        hint=_("This job goes into another queue, and keeps its due time and its priority."),
        question_title=_("Change the queue of job %(id)s"),
        done=_("Job %(id)s is in the queue “%(queue_name)s” now."),
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
        done=ngettext_lazy("%(number)s job is in another queue.", "%(number)s jobs are in another queue.", "count"),
    ),
    done=_("put into another queue"),
    leads_to=Status.QUEUED,
)


CHANGE_PRIORITY = Verb(
    name="change_priority",
    help="Give waiting jobs another priority",
    permission="retry",
    statuses=WAITING,
    options=(PRIORITY,),
    change=Store.change_priority,
    exception="of this priority already, or changed meanwhile",
    why_unchanged=_why_it_has("priority", _("Job %(id)s has this priority already.")),
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
        done=ngettext_lazy("%(number)s job has another priority.", "%(number)s jobs have another priority.", "count"),
    ),
    done=_("given another priority"),
    leads_to=Status.QUEUED,
)


VERBS = (RETRY, RUN_NOW, POSTPONE, RESCHEDULE, CHANGE_QUEUE, CHANGE_PRIORITY, DISCARD, CANCEL, DELETE, RUN_AGAIN)
"""All verbs, in the order of the buttons and of the actions."""

BUTTONS = tuple((verb, verb.button) for verb in VERBS if verb.button)

BY_ACTION = {verb.action_name: verb for verb in VERBS}
"""The verbs by the names of their actions in the admin."""
