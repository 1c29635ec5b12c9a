"""What can be done with one job, by a button on its page: retry, run now, postpone, discard, cancel, run again.

Invariant: the verbs of the queue decide. A status read before says only which buttons to show; what has changed
meanwhile is refused, and told.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from django.db.models import TextField
from django.db.models.functions import Cast, Now
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import ALIVE, FINISHED, WAITING, Job, Status
from ...values.codec import shorten
from ...values.records import Call, JobSpec
from ..ui.arguments import redacted
from ..ui.durations import span
from .forms import Instruction, PostponeQuestion, Question


@dataclass(frozen=True)
class Answer:
    """What became of a verb."""

    message: str
    show: int
    """The id of the job to look at next."""
    changes: tuple[tuple[int, str, str], ...] = ()
    """For the log: id and name of each job that was changed, and how."""


class Verb(ABC):
    """One button."""

    name: ClassVar[str]
    label: ClassVar[str | Promise]
    hint: ClassVar[str | Promise]
    """What it does, in a sentence or two."""
    statuses: ClassVar[frozenset[str]]
    asks: ClassVar[bool] = True
    """Whether it is done only once a question is answered."""
    question: ClassVar[type[Question]] = Question
    is_primary: ClassVar[bool] = False
    """Whether its button stands out."""
    is_dangerous: ClassVar[bool] = False
    """Whether the button below its question is red."""

    def fits(self, job: Job) -> bool:
        """Whether the job's status allows it."""
        return job.status in self.statuses

    @abstractmethod
    def order(self, job: Job) -> str:
        """To do it to this job, as an order; with a question mark it is the question."""

    @abstractmethod
    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Do it, if the job still allows it."""

    def refused(self, job: Job) -> Answer:
        """Why nothing was done, by what the job is now."""
        now = Job.objects.filter(pk=job.pk).first()
        if now is None:
            return Answer(gettext("Job %(id)s was deleted meanwhile.") % {"id": job.pk}, job.pk)
        values = {"id": job.pk, "status": now.get_status_display(), "verb": self.label}
        if not self.fits(now):
            return Answer(gettext("“%(verb)s” did nothing: job %(id)s is %(status)s now.") % values, job.pk)
        holder = Job.objects.filter(unique_key=job.unique_key, status__in=ALIVE).first() if job.unique_key else None
        if holder is not None:
            return Answer(_key_is_held(job, holder), job.pk)
        return Answer(gettext("“%(verb)s” did nothing: job %(id)s is changing right now. Try again.") % values, job.pk)


class RetryJob(Verb):
    """Put the job back into its queue."""

    name = "retry"
    label = _("Retry")
    hint = _("Put this job back into its queue, with a fresh set of attempts.")
    statuses = frozenset({Status.FAILED, Status.DISCARDED})
    asks = False
    is_primary = True

    def order(self, job: Job) -> str:
        """Retry it."""
        return gettext("Retry job %(id)s") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Retry."""
        if not job.retry(by=wanted.user):
            return self.refused(job)
        values = {"id": job.pk, "queue": shorten(job.queue_name, 200)}
        message = gettext("Job %(id)s is back in the queue “%(queue)s”.") % values
        return Answer(message, job.pk, ((job.pk, str(job), gettext("Retried.")),))


class RunJobNow(Verb):
    """Make a job due that waits for a time, or for its next attempt."""

    name = "run_now"
    label = _("Run now")
    hint = _("Put this job into its queue now. The attempts that it has had stay counted.")
    statuses = frozenset({Status.SCHEDULED})
    asks = False

    def order(self, job: Job) -> str:
        """Run it now."""
        return gettext("Run job %(id)s now") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Run now."""
        if not job.run_now(by=wanted.user, reason=wanted.reason):
            return self.refused(job)
        message = gettext("Job %(id)s is due now.") % {"id": job.pk}
        return Answer(message, job.pk, ((job.pk, str(job), gettext("Made due.")),))


class PostponeJob(Verb):
    """Have a job wait that is not running."""

    name = "postpone"
    label = _("Postpone")
    hint = _("This job waits, and runs later.")
    statuses = frozenset(WAITING)
    question = PostponeQuestion

    def order(self, job: Job) -> str:
        """Postpone it."""
        return gettext("Postpone job %(id)s") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Postpone."""
        delay = timedelta(minutes=wanted.minutes)
        if not job.postpone(delay, by=wanted.user, reason=wanted.reason):
            if Job.objects.scheduled().filter(pk=job.pk, run_after__gte=Now() + delay).exists():
                return Answer(gettext("Job %(id)s is due later than that already.") % {"id": job.pk}, job.pk)
            return self.refused(job)
        message = gettext("Job %(id)s is due %(when)s.") % {"id": job.pk, "when": gettext("in %s") % span(delay)}
        return Answer(message, job.pk, ((job.pk, str(job), gettext("Postponed.")),))


class DiscardJob(Verb):
    """Finish the job without running it."""

    name = "discard"
    label = _("Discard")
    hint = _("Finish this job without running it. It can be retried later.")
    statuses = frozenset(WAITING)

    def order(self, job: Job) -> str:
        """Discard it."""
        return gettext("Discard job %(id)s") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Discard."""
        if not job.discard(by=wanted.user, reason=wanted.reason):
            return self.refused(job)
        message = gettext("Job %(id)s is discarded.") % {"id": job.pk}
        return Answer(message, job.pk, ((job.pk, str(job), gettext("Discarded.")),))


class CancelJob(Verb):
    """Take the job from its worker, and interrupt its task."""

    name = "cancel"
    label = _("Cancel")
    hint = _("Interrupt this job and discard it. What its task has done already stays done.")
    statuses = frozenset({Status.RUNNING})
    is_dangerous = True

    def order(self, job: Job) -> str:
        """Cancel it."""
        return gettext("Cancel job %(id)s") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Cancel."""
        if not job.cancel(by=wanted.user, reason=wanted.reason):
            return self.refused(job)
        message = gettext("Job %(id)s is cancelled; its task ends within a second or two.") % {"id": job.pk}
        return Answer(message, job.pk, ((job.pk, str(job), gettext("Cancelled.")),))


class RunJobAgain(Verb):
    """Enqueue a copy: same task, arguments, queue, priority, attempts and unique key."""

    name = "run_again"
    label = _("Run again as a new job")
    hint = _(
        "A copy of this job is enqueued, and this one stays as it is. "
        "The task runs once more with the same arguments: what it charged, sent or wrote, it does again."
    )
    statuses = frozenset(FINISHED)

    def order(self, job: Job) -> str:
        """Run it again."""
        return gettext("Run job %(id)s again, as a new job") % {"id": job.pk}

    def apply(self, job: Job, wanted: Instruction) -> Answer:
        """Copy the row's JSON texts as they are. The key goes with them: a second run must not break its promise."""
        if not self.fits(job):
            return self.refused(job)
        args, kwargs = (Cast(name, TextField()) for name in ("args", "kwargs"))
        texts = Job.objects.filter(pk=job.pk).values_list(args, kwargs).first()
        if texts is None:
            return self.refused(job)
        spec = JobSpec(
            job.task,
            queue_name=job.queue_name,
            priority=job.priority,
            max_attempts=job.max_attempts,
            timeout=job.timeout,
            retention=job.retention and json.dumps(job.retention),
            metadata=json.dumps(job.metadata),
        )
        copy = Job.objects.insert(spec, Call(texts[0], texts[1], job.unique_key))
        if not copy.created:
            return Answer(_key_is_held(job, copy), job.pk)
        values = {"id": job.pk, "copy": copy.pk}
        return Answer(
            gettext("This is job %(copy)s, a copy of job %(id)s.") % values,
            copy.pk,
            (
                (job.pk, str(job), gettext("Run again as job %(copy)s.") % values),
                (copy.pk, str(copy), gettext("Copied from job %(id)s.") % values),
            ),
        )


VERBS: tuple[Verb, ...] = (RetryJob(), RunJobNow(), PostponeJob(), DiscardJob(), CancelJob(), RunJobAgain())


def _key_is_held(job: Job, holder: Job) -> str:
    return gettext("Nothing was done: the unique key “%(key)s” is held by job %(id)s, which is %(status)s.") % {
        "key": shorten(redacted(job.task, job.args, job.kwargs).text(job.unique_key or ""), 200),
        "id": holder.pk,
        "status": holder.get_status_display(),
    }
