"""Why a job is not finished yet, why a job that failed was not tried again, and its state as pages show it.

An explanation is a sentence, or nothing. Invariant: nothing is guessed. There is no sentence where neither the row nor
the code of this process has the reason.
"""

from dataclasses import dataclass
from datetime import datetime

from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ....exceptions import UnknownTask, UnstorableResult, WorkerDied
from ....jobs.registry import registry
from ....models import Job, Status
from ....values.backoff import RetryPolicy
from ... import waiting
from ...durations import exact, roughly
from ...job_states import STATES, state_of
from ...queues_and_workers import Workforce
from ..verbs.table import RETRY
from ..verbs.waiting_jobs import POSTPONE, RESCHEDULE
from .attempts import Attempt
from .history import operations_of

ENDED_BY_THE_QUEUE = {WorkerDied.__name__, UnknownTask.__name__, UnstorableResult.__name__}


def why_it_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    """The condition that a job waits for, or the operator who chose its time; whether the worker of one is late."""
    return _who_chose_its_time(job, now) or waiting.why_it_waits(job, now, workforce)


def why_it_was_not_retried(job: Job, attempts: list[Attempt]) -> str:
    last = attempts[0] if attempts else None
    if last is None or last.is_cancelled or job.status not in (Status.FAILED, Status.DISCARDED):
        return ""
    if last.status != job.status:  # an operator discarded the job later
        return ""
    name = last.exception.rpartition(".")[2]
    if job.status == Status.DISCARDED:
        return _why_it_was_discarded(job, name)
    if job.attempts >= job.max_attempts:
        return ngettext(
            "Not retried: it had only one attempt.",
            "Not retried: that was the last of %(number)s attempts.",
            job.max_attempts,
        ) % {"number": job.max_attempts}
    retried = _retry_on(job)
    if retried is not None and name not in retried and not _was_ended_by_the_queue(last):
        return gettext("Not retried: %(exception)s is not in the task's retry_on.") % {"exception": name}
    return ""


def _why_it_was_discarded(job: Job, name: str) -> str:
    if name == "Discard":
        return gettext("Not retried: the task itself discarded its job.")
    policy = _policy(job)
    if policy is None or not policy.discard_on:
        return ""
    return gettext("Not retried: %(exception)s is in the task's discard_on.") % {"exception": name}


def _who_chose_its_time(job: Job, now: datetime) -> str:
    if job.status != Status.SCHEDULED or job.run_after <= now:
        return ""
    timed = (RETRY.name, POSTPONE.name, RESCHEDULE.name)
    last = [each for each in operations_of(job) if each.verb in timed][-1:]
    if not last or (last[0].verb == RETRY.name and job.attempts):  # a retry whose attempt has failed
        return ""
    return gettext("%(operation)s: due in %(span)s, at %(time)s.") % {
        "time": exact(job.run_after),
        "span": roughly(job.run_after - now),
        "operation": capfirst(last[0].done_by),
    }


def _policy(job: Job) -> RetryPolicy | None:
    try:
        task = registry.get(job.task)
    except UnknownTask:
        return None
    return task.policy


def _retry_on(job: Job) -> set[str] | None:
    """The names of the exceptions after which the task is retried; `None`: all, or the task is not registered."""
    policy = _policy(job)
    return {kind.__name__ for kind in policy.retry_on} if policy and policy.retry_on is not None else None


def _was_ended_by_the_queue(attempt: Attempt) -> bool:
    """Whether the queue itself ended the job, without the task's policy; then the message has the reason."""
    return not attempt.worker or attempt.exception.rpartition(".")[2] in ENDED_BY_THE_QUEUE


@dataclass(frozen=True)
class ShownState:
    """The state of one job, for pages that show it; `now` is the database's time."""

    job: Job
    now: datetime

    @property
    def is_final(self) -> bool:
        """Whether the job no longer changes by itself, so that the page need not be fetched again."""
        return Status(self.job.status).is_finished

    @property
    def state(self) -> str:
        """The status; `retrying` for a scheduled job that has failed before."""
        return state_of(self.job)

    @property
    def state_label(self) -> str:
        return str(STATES[self.state])
