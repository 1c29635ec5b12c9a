"""A job's timeline: when it was enqueued, attempted, changed by operators and finished, and when it is next due.

An attempt is shown at the time when it ended, with how long it waited and ran. This module sends no queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....models import Job, Status
from ....values.codec import shorten
from ...durations import distance, span
from ...operations import attempts_before
from ...parts import holder_of
from .attempts import ShownAttempt
from .history import RELEASE_VERB, SNOOZE_VERB, ShownOperation, operations_of

ONE_MOMENT = timedelta(milliseconds=1)
"""Times that differ by at most this are the same moment."""

ATTEMPT_LABELS = {
    Status.RUNNING.value: _("attempt %(number)s running"),
    Status.COMPLETED.value: _("attempt %(number)s completed"),
    Status.FAILED.value: _("attempt %(number)s failed"),
    Status.DISCARDED.value: _("attempt %(number)s discarded"),
}
EXTERNAL_LABEL = _("attempt %(number)s at %(holder)s")
CANCELLED_LABEL = _("attempt %(number)s cancelled")
UNCOUNTED_END_LABELS = {
    RELEASE_VERB: _("attempt %(number)s released, because its worker stopped"),
    SNOOZE_VERB: _("attempt %(number)s snoozed"),
}
"""Labels for the end of an attempt that is not counted, by the verb that the worker recorded in `operations`."""
SNOOZES_LABEL = _("attempt %(number)s snoozed, the last of %(times)s times")
RECOVERED_LABEL = _("attempt %(number)s ended with its worker, and the job was recovered")


@dataclass(frozen=True, kw_only=True)
class Moment:
    label: str
    at: datetime
    status: str
    """The status that determines the moment's colour."""
    details: tuple[str, ...] = ()
    reason: str = ""
    distance: str = ""
    is_ahead: bool = False
    """Whether the moment is in the future."""


def timeline(job: Job, attempts: Sequence[ShownAttempt], now: datetime) -> list[Moment]:
    """Return the moments, the oldest first. `attempts`: the job's attempts, the newest first."""
    operations = operations_of(job)
    moments = [
        *_beginning_of_job(job, operations),
        *(_moment_of_operation(operation, operations) for operation in operations),
    ]
    ended_at: datetime | None = None
    for attempt in reversed(attempts):
        moments += _moments_of_attempt(attempt, now, ended_at, holder="" if attempt.ended_at else holder_of(job))
        ended_at = attempt.ended_at
    moments += _end_of_job(job, attempts, operations)
    moments_with_distance = (
        replace(moment, distance=distance(moment.at, now), is_ahead=moment.at > now) for moment in moments
    )
    return sorted(moments_with_distance, key=attrgetter("at"))


def _beginning_of_job(job: Job, operations: Sequence[ShownOperation]) -> Iterator[Moment]:
    was_scheduled = job.run_after - job.enqueued_at > ONE_MOMENT
    was_finished_early = job.finished_at is not None and job.finished_at < job.run_after
    yield Moment(label=gettext("enqueued"), at=job.enqueued_at, status=Status.QUEUED)
    if (
        was_scheduled
        and not was_finished_early
        and not any(abs(job.run_after - operation.at) <= ONE_MOMENT for operation in operations)
    ):
        is_next = job.status == Status.SCHEDULED and job.attempts > 0
        label = gettext("next attempt due") if is_next else gettext("due")
        yield Moment(label=label, at=job.run_after, status=Status.SCHEDULED)


def _moment_of_operation(operation: ShownOperation, operations: Sequence[ShownOperation]) -> Moment:
    """Return the moment of an operator's act, or of the end of an attempt that is not counted.

    An attempt is not counted if its worker stopped or its task snoozed, so the next attempt gets the same number. After
    several snoozes in a row, the job only records the last one.
    """
    if operation.verb not in UNCOUNTED_END_LABELS:
        details = (operation.change,) if operation.change else ()
        return Moment(
            label=operation.done_by, at=operation.at, status=operation.status, details=details, reason=operation.reason
        )
    number = operation.attempts + attempts_before(operations, operation.at)
    started_at = operation.attempt_started_at
    ran_text = [gettext("ran %(span)s") % {"span": span(operation.at - started_at)}] if started_at else []
    label = SNOOZES_LABEL if operation.times > 1 else UNCOUNTED_END_LABELS[operation.verb]
    return Moment(
        label=str(label) % {"number": number, "times": operation.times},
        at=operation.at,
        status=operation.status,
        details=(*ran_text, operation.by),
    )


def _moments_of_attempt(
    attempt: ShownAttempt, now: datetime, previous_ended_at: datetime | None, *, holder: str
) -> Iterator[Moment]:
    shown_at = attempt.ended_at or attempt.started_at
    if shown_at is None:
        return
    label = (
        CANCELLED_LABEL
        if attempt.is_cancelled
        else RECOVERED_LABEL
        if attempt.is_recovered
        else ATTEMPT_LABELS[attempt.status]
    )
    label = EXTERNAL_LABEL if holder else label
    details = []
    if previous_ended_at and attempt.started_at and attempt.started_at > previous_ended_at:
        pause = span(attempt.started_at - previous_ended_at)
        details.append(gettext("%(span)s after the previous attempt") % {"span": pause})
    if attempt.waited is not None:
        details.append(gettext("waited %(span)s") % {"span": span(attempt.waited)})
    if attempt.duration is not None:
        details.append(gettext("ran %(span)s") % {"span": span(attempt.duration)})
    elif attempt.started_at is not None:
        text = gettext("waiting or running for %(span)s") if holder else gettext("running for %(span)s")
        details.append(text % {"span": span(now - attempt.started_at)})
    if attempt.worker:
        details.append(attempt.worker)
    yield Moment(
        label=str(label) % {"number": attempt.number or "?", "holder": shorten(holder, 100)},
        at=shown_at,
        status=attempt.status,
        details=tuple(details),
    )


def _end_of_job(job: Job, attempts: Sequence[ShownAttempt], operations: Sequence[ShownOperation]) -> Iterator[Moment]:
    """Yield the end of the job, unless an attempt or an operator's act already shows it."""
    is_shown = any(attempt.status == job.status and attempt.ended_at for attempt in attempts[:1])
    is_shown |= job.status == Status.DISCARDED and any(operation.status.is_finished for operation in operations[-1:])
    if job.finished_at and not is_shown:
        yield Moment(label=job.get_status_display(), at=job.finished_at, status=job.status)
