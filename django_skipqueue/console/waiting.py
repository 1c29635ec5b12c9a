"""Explain in a sentence why a job has not finished yet.

If the database does not show the reason, there is no sentence. Every query reads a few rows, or counts up to
`console.counts.MOST_JOBS_COUNTED` jobs in an index.
"""

from datetime import datetime

from django.db.models import F, Value
from django.db.models.lookups import LessThan
from django.utils.translation import gettext, ngettext

from ..conf import settings
from ..exceptions import UnknownTask
from ..models import Job, Queue, Status
from ..models.expressions import CLAIM_ORDER, MINUS_PRIORITY, Row
from ..models.status import WAITING
from ..queue.store import Store
from ..values.codec import shorten
from .counts import Count
from .durations import clock_time, exact, roughly, span
from .operations import number_of_attempts
from .parts import consoles, externals
from .queues_and_workers import Workforce, pause_sentence
from .rules.locks import locker_of

LONGEST_NAME_IN_SENTENCE = 200
"""A longer name or key is cut to this number of characters in a sentence."""

UNKNOWN_TASK = f"{UnknownTask.__name__}: "
"""The error of a job begins with this text if the worker does not know the job's task."""


def why_it_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    """Explain what a job waits for; for a running job, that its worker is late, or which external system has it."""
    if sentence := _who_locks_its_row(job, now):
        return sentence
    match job.status:
        case Status.QUEUED:
            return _why_it_is_queued(job, now, workforce)
        case Status.SCHEDULED:
            return _why_it_is_scheduled(job, now, workforce)
        case Status.BLOCKED:
            sentences = (console.explain(job, now) for console in consoles() if console.explain)
            return next(filter(None, sentences), gettext("It is due, and waits for a limit or another job."))
        case Status.RUNNING:
            return _why_external_system_waits(job, now, workforce) or _that_its_worker_is_late(job, workforce)
    return ""


def _who_locks_its_row(job: Job, now: datetime) -> str:
    is_due = job.status == Status.RUNNING or (job.status in WAITING and job.run_after <= now)
    locker = locker_of(Store(job._state.db or settings.database), job.pk) if is_due else None
    if locker is None:
        return ""
    text = gettext(
        "Its row has been locked since %(time)s by %(locker)s. While it is locked, no worker can claim the job or "
        "store its outcome."
    )
    return text % {"time": clock_time(locker.since, now), "locker": locker.in_words}


def _why_external_system_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    explanations = (external.explain(job, now, workforce) for external in externals())
    return next(filter(None, explanations), "")


def _why_it_is_queued(job: Job, now: datetime, workforce: Workforce) -> str:
    if pause := Queue.objects.paused().filter(name=job.queue_name).first():
        return pause_sentence(pause)
    if sentence := _why_external_system_waits(job, now, workforce):
        return sentence
    if not workforce.not_dead:
        return gettext("It waits for a worker, but no worker is alive.")
    if not workforce.serving(job.queue_name):
        return gettext("It waits for a worker, but no live worker serves the queue “%(queue)s”.") % _queue_value(job)
    text = gettext("It is the next job in the queue “%(queue)s”, and begins as soon as a slot is free.")
    return place_in_queue(job, text)


def place_in_queue(job: Job, text_of_next: str) -> str:
    """Say how many jobs workers claim before this job. For the next job, return `text_of_next` with its queue."""
    own_position = Row(Value(-job.priority), Value(job.run_after), Value(job.pk))
    is_earlier = LessThan(Row(MINUS_PRIORITY, F("run_after"), F("id")), own_position)
    queued = Job.objects.queued().filter(is_earlier, queue_name=job.queue_name)
    earlier_count = Count.of(queued.order_by(*CLAIM_ORDER))  # index: claim
    if not earlier_count.found:
        return text_of_next % _queue_value(job)
    return ngettext(
        "%(number)s job in the queue “%(queue)s” comes before it.",
        "%(number)s jobs in the queue “%(queue)s” come before it.",
        earlier_count.found,
    ) % {"number": earlier_count, **_queue_value(job)}


def _why_it_is_scheduled(job: Job, now: datetime, workforce: Workforce) -> str:
    values = {
        "time": exact(job.run_after),
        "span": roughly(job.run_after - now),
        "attempt": number_of_attempts(job) + 1,
    }
    if job.run_after <= now and not workforce.not_dead:
        return gettext("It was due %(span)s ago, but no worker is alive.") % values
    if job.run_after <= now:
        return gettext("It is due now, and will be queued within a second or two.")
    text = gettext("Scheduled: due in %(span)s, at %(time)s.")
    if job.last_error.startswith(UNKNOWN_TASK):
        text = gettext(
            "The worker that claimed it does not know its task: the task was renamed, or the worker runs old code. "
            "The next try is due in %(span)s, at %(time)s."
        )
    elif job.attempts:
        text = gettext("Attempt %(attempt)s is due in %(span)s, at %(time)s.")
    return text % values


def _that_its_worker_is_late(job: Job, workforce: Workforce) -> str:
    worker = workforce.get(job.locked_by)
    if worker is None or worker.state == "live":
        return ""
    text = gettext("Its worker %(worker)s has sent no heartbeat for %(time)s. After %(timeout)s, the job is recovered.")
    name, timeout = shorten(worker.name, LONGEST_NAME_IN_SENTENCE), span(settings.worker_timeout)
    return text % {"worker": name, "time": span(worker.age), "timeout": timeout}


def _queue_value(job: Job) -> dict[str, str]:
    return {"queue": shorten(job.queue_name, LONGEST_NAME_IN_SENTENCE)}
