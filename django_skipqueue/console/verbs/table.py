"""The table of verbs: everything that operators can do to jobs.

The admin's buttons, actions, questions, history and log entries are derived from it, and so are the subcommands of the
command line. Each verb is also a method of `Job` and of its query sets. Only the button "Delete…" on a job's page comes
from Django.
"""

from collections.abc import Callable, Collection

from django.db import transaction
from django.db.models import QuerySet
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
    """Delete these jobs, except running ones, and the parts' data about them.

    Return the ids of the deleted jobs. The jobs are locked first, so that no worker can claim them. A job that a worker
    has just claimed is not deleted.
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
    """Enqueue a copy of each finished job whose unique key is free, even in other databases.

    Returns the id of each copied job with the id of its copy.
    """
    return copy_jobs(copyable(store, ids), by=by, reason=reason)


def copyable(store: Store, ids: Collection[int]) -> QuerySet[Job]:
    """Return the jobs among these whose unique key no job of another database holds."""
    jobs = Job.objects.using(store.alias).filter(pk__in=ids)
    held_ids = [job.pk for job in jobs if why_held_elsewhere(job)] if settings.serves_several else []
    return jobs.exclude(pk__in=held_ids)


RETRY = Verb(
    name="retry",
    help="Put failed or discarded jobs back into their queues, with a fresh set of attempts",
    permission="retry",
    statuses={Status.FAILED, Status.DISCARDED},
    default_statuses=(Status.FAILED,),
    options=(OVER,),
    change=Store.retry,
    exception="whose unique key another job holds, or that have just changed",
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
            "A job is not changed while another unfinished job holds its unique key."
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
    help="Finish waiting jobs without running them, or let a halted sequence go on without its failed job",
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
            "Scheduled, retrying and queued jobs are finished without being run. Running jobs are not changed. "
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
    help="Discard waiting and running jobs; running jobs are interrupted",
    permission="discard",
    statuses=UNFINISHED,
    offered_for={Status.RUNNING},  # for a waiting job, Discard does the same
    change=Store.cancel,
    is_dangerous=True,
    button=Button(
        label=_("Cancel"),
        hint=_("Interrupt this job and discard it. What its task has already done stays done."),
        question_title=_("Cancel job %(id)s"),
        done=_("Job %(id)s is cancelled; its task ends within a second or two."),
        hint_if_external=_("Discard this job. If it has begun, it is not interrupted, and its outcome is dropped."),
        done_if_external=_("Job %(id)s is cancelled. If it has begun, it runs on, and its outcome is dropped."),
    ),
    action=Action(
        label=_("Cancel selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are discarded. Running jobs are interrupted within a second or two; "
            "what their tasks have already done stays done."
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
    help="Delete jobs for good, with their results and errors; running jobs are not deleted",
    permission="delete",
    statuses=set(Status.values) - {Status.RUNNING},
    default_statuses=(),
    change=lambda store, ids, **_noted: delete_jobs(store, ids),  # no row is left to store who did it
    is_dangerous=True,
    leaves_rows=False,
    action=Action(
        label=_("Delete selected %(verbose_name_plural)s"),
        explanation=_(
            "The jobs are removed for good, with their arguments, results and errors. "
            "Waiting jobs will not run. Running jobs are not deleted."
        ),
        question_title=ngettext_lazy("Delete %(number)s job", "Delete %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was deleted.", "%(number)s jobs were deleted.", "count"),
    ),
    done=_("deleted"),
    leads_to=Status.DISCARDED,
)

RUN_AGAIN = Verb(
    name="run_again",
    help="Enqueue copies of finished jobs; their tasks charge, send or write again what they did before",
    permission="add",  # a copy is a new job
    statuses=FINISHED,
    default_statuses=(),
    change=run_again,
    exception="whose unique key another job holds, or that cannot be run again",
    why_unchanged=lambda job, _instruction: copy_refusal(job) or why_held_elsewhere(job),
    button=Button(
        label=_("Run again as a new job"),
        hint=_(
            "A copy of this job is enqueued, and this job is not changed. "
            "The task runs once more with the same arguments, so it charges, sends or writes everything again."
        ),
        question_title=_("Run job %(id)s again, as a new job"),
        done=_("This is job %(copy)s, a copy of job %(id)s."),
    ),
    action=Action(
        label=_("Run selected %(verbose_name_plural)s again, as new jobs"),
        explanation=_(
            "Copies of the finished jobs are enqueued, and the jobs are not changed. Their tasks run once more with "
            "the same arguments, so they charge, send or write everything again."
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
        hint=_("Put this job into its queue now. Its attempts so far still count."),
        question_title=_("Run job %(id)s now"),
        done=_("Job %(id)s is due now."),
        asks=False,
    ),
    action=Action(
        label=_("Run selected %(verbose_name_plural)s now"),
        explanation=_("Scheduled and retrying jobs go into their queues now. Their attempts so far still count."),
        question_title=ngettext_lazy("Run %(number)s job now", "Run %(number)s jobs now", "count"),
        done=ngettext_lazy("%(number)s job is due now.", "%(number)s jobs are due now.", "count"),
    ),
    done=_("made due"),
    leads_to=Status.QUEUED,
)


POSTPONE = Verb(
    name="postpone",
    help="Make waiting jobs wait longer",
    permission="retry",
    statuses=WAITING,
    options=(DELAY,),
    change=Store.postpone,
    exception="already due later, or just changed",
    action=Action(
        label=_("Postpone selected %(verbose_name_plural)s"),
        explanation=_("Scheduled, retrying and queued jobs wait longer. Jobs that are due later anyway do not change."),
        question_title=ngettext_lazy("Postpone %(number)s job", "Postpone %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was postponed.", "%(number)s jobs were postponed.", "count"),
    ),
    done=_("postponed"),
    leads_to=Status.SCHEDULED,
)

RESCHEDULE = Verb(
    name="reschedule",
    help="Set an earlier or later due time for waiting jobs",
    permission="retry",
    statuses=WAITING,
    options=(RUN_AFTER,),
    change=Store.reschedule,
    button=Button(
        label=_("Reschedule"),
        hint=_("Choose an earlier or later time at which this job is due. Its attempts so far still count."),
        question_title=_("Reschedule job %(id)s"),
        done=_("Job %(id)s is due at %(run_after)s."),
    ),
    action=Action(
        label=_("Reschedule selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs become due at this time. Their attempts so far still count."
        ),
        question_title=ngettext_lazy("Reschedule %(number)s job", "Reschedule %(number)s jobs", "count"),
        done=ngettext_lazy("%(number)s job was rescheduled.", "%(number)s jobs were rescheduled.", "count"),
    ),
    done=_("rescheduled"),
    leads_to=Status.SCHEDULED,
)


def _why_unchanged_if_same(column: str, message: Text) -> Callable[[Job, Instruction], str]:
    """Return a function that returns this message for a job whose column already has the option's value."""
    return lambda job, instruction: (
        str(message) % {"id": job.pk} if getattr(job, column) == instruction.options[column] else ""
    )


CHANGE_QUEUE = Verb(
    name="change_queue",
    help="Put waiting jobs into another queue",
    permission="retry",
    statuses=WAITING,
    options=(QUEUE_NAME,),
    change=Store.change_queue,
    exception="already in this queue, or just changed",
    why_unchanged=_why_unchanged_if_same("queue_name", _("Job %(id)s is already in this queue.")),
    button=Button(
        label=_("Change queue"),
        hint=_("This job goes into another queue, and keeps its due time and its priority."),
        question_title=_("Change the queue of job %(id)s"),
        done=_("Job %(id)s is now in the queue “%(queue_name)s”."),
    ),
    action=Action(
        label=_("Change the queue of selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs go into another queue, and keep their due times and priorities. "
            "Running jobs are not changed."
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
    exception="already of this priority, or just changed",
    why_unchanged=_why_unchanged_if_same("priority", _("Job %(id)s already has this priority.")),
    button=Button(
        label=_("Change priority"),
        hint=_("Workers claim this job before jobs of its queue that have a lower priority."),
        question_title=_("Change the priority of job %(id)s"),
        done=_("Job %(id)s now has the priority %(priority)s."),
    ),
    action=Action(
        label=_("Change the priority of selected %(verbose_name_plural)s"),
        explanation=_(
            "Scheduled, retrying and queued jobs get another priority. Within a queue, jobs with a higher priority are "
            "claimed first. Running jobs are not changed."
        ),
        question_title=ngettext_lazy(
            "Change the priority of %(number)s job", "Change the priority of %(number)s jobs", "count"
        ),
        done=ngettext_lazy("%(number)s job has another priority.", "%(number)s jobs have another priority.", "count"),
    ),
    done=_("given another priority"),
    leads_to=Status.QUEUED,
)


CORE_VERBS = (RETRY, RUN_NOW, POSTPONE, RESCHEDULE, CHANGE_QUEUE, CHANGE_PRIORITY, DISCARD, CANCEL, DELETE, RUN_AGAIN)


def verbs() -> tuple[Verb, ...]:
    """Return all verbs, in the order of the buttons and actions. The verbs of parts come last."""
    return (*CORE_VERBS, *(verb for part in consoles() for verb in part.verbs))


def buttons() -> list[tuple[Verb, Button]]:
    return [(verb, verb.button) for verb in verbs() if verb.button]


def verbs_by_action() -> dict[str, Verb]:
    """Return the verbs by the name of their action in the admin."""
    return {verb.action_name: verb for verb in verbs()}
