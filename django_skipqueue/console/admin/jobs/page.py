"""The page of one job: its state, times and arguments, and the outcome of each attempt.

The page explains why a job is not finished yet, or why a failed job was not retried. It never guesses: there is no
explanation if neither the row nor the task's code gives the reason.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain, islice
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ....conf import settings
from ....exceptions import UnknownTask, UnstorableResult, WorkerDied
from ....jobs.registry import registry
from ....models import WAITING, Job, Status
from ....values.backoff import RetryPolicy
from ....values.codec import clean, shorten
from ....values.notes import Progress
from ....values.outcomes import MESSAGE_LIMIT
from ....values.records import worker_name
from ....values.redaction import MASK, Redacted
from ... import waiting
from ...arguments import as_call, masked, named, redacted
from ...durations import clock_time, exact, roughly, span
from ...job_states import STATES, state_of
from ...operations import number_of_attempts
from ...parts import PartFact, consoles, holder_of
from ...queues_and_workers import Workforce
from ...verbs.table import POSTPONE, RESCHEDULE, RETRY
from .attempts import ShownAttempt, ShownLog, attempts_of, shown_logs
from .history import operations_of
from .links import defer_call, links_of_attempt, links_of_job
from .timeline import Moment, timeline

JSON_LIMIT = 20_000
"""The arguments take at most this many characters, because an argument may be megabytes long."""

MOST_ARGUMENTS_SHOWN = 50

SHOWN_LINE_LIMIT = 500
"""A name, a key, or another one-line text takes at most this many characters."""

ENDED_BY_THE_QUEUE = {WorkerDied.__name__, UnknownTask.__name__, UnstorableResult.__name__}


def why_it_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    """Explain what the job waits for, which operator has postponed it, or that its worker is late."""
    if job.status == Status.SCHEDULED and job.run_after > now:
        postponing_verbs = (RETRY.name, POSTPONE.name, RESCHEDULE.name)
        last_operation = next(
            (operation for operation in reversed(operations_of(job)) if operation.verb in postponing_verbs), None
        )
        # An attempt that failed after a manual retry has postponed the job itself.
        if last_operation and not (last_operation.verb == RETRY.name and job.attempts):
            return gettext("%(operation)s: due in %(span)s, at %(time)s.") % {
                "time": exact(job.run_after),
                "span": roughly(job.run_after - now),
                "operation": capfirst(last_operation.done_by),
            }
    return waiting.why_it_waits(job, now, workforce)


def why_it_was_not_retried(job: Job, attempts: list[ShownAttempt]) -> str:
    last_attempt = attempts[0] if attempts else None
    if last_attempt is None or last_attempt.is_cancelled or job.status not in (Status.FAILED, Status.DISCARDED):
        return ""
    exception = last_attempt.exception.rpartition(".")[2]
    policy: RetryPolicy | None
    try:
        policy = registry.get(job.task).policy
    except UnknownTask:
        policy = None
    text = ""
    if last_attempt.status != job.status:
        pass  # an operator discarded the job after this attempt
    elif job.status == Status.DISCARDED and exception == "Discard":
        text = gettext("Not retried: the task itself discarded its job.")
    elif job.status == Status.DISCARDED:
        if policy and policy.discard_on:
            text = gettext("Not retried: %(exception)s is in the task's discard_on.")
    elif job.attempts >= job.max_attempts:
        text = ngettext(
            "Not retried: only one attempt was allowed.",
            "Not retried: that was the last of %(number)s attempts.",
            job.max_attempts,
        )
    elif not last_attempt.worker or exception in ENDED_BY_THE_QUEUE:
        pass  # the error message already gives the reason
    elif policy and policy.retry_on is not None and exception not in {kind.__name__ for kind in policy.retry_on}:
        text = gettext("Not retried: %(exception)s is not in the task's retry_on.")
    return text % {"exception": exception, "number": job.max_attempts}


@dataclass(frozen=True)
class ShownState:
    """A job's state, for the pages that show it. `now` is the database's time."""

    job: Job
    now: datetime

    @property
    def is_final(self) -> bool:
        """Whether the job no longer changes by itself, so the page need not be refreshed."""
        return Status(self.job.status).is_finished

    @property
    def state(self) -> str:
        """The job's status, or `retrying` if the job has failed before and is scheduled."""
        return state_of(self.job)

    @property
    def state_label(self) -> str:
        return str(STATES[self.state])


@dataclass(frozen=True)
class JobPage(ShownState):
    mask = MASK

    @property
    def is_running(self) -> bool:
        return bool(self.job.status == Status.RUNNING)

    @cached_property
    def holder(self) -> str:
        """The carrier (another system that runs jobs) to which the job was handed over; empty if there is none."""
        return holder_of(self.job)

    @property
    def with_holder_since(self) -> str:
        """Since when the carrier has the job. The database does not know when the job began to run there."""
        return clock_time(self.job.locked_at or self.now, self.now)

    @property
    def handle(self) -> str:
        """The job's id with its database if there are several databases, otherwise empty."""
        return str(self.job.handle) if settings.serves_several else ""

    @property
    def live_text(self) -> str:
        """The text that a screen reader announces when the status changes."""
        return gettext("Job %(id)s is %(status)s.") % {"id": self.job.pk, "status": self.state_label}

    @cached_property
    def call(self) -> Redacted:
        """The arguments with their secrets masked. Its method `text` masks the same secrets in any text."""
        return redacted(self.job.task, self.job.args, self.job.kwargs)

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """Each argument's name or position, and its value as JSON.

        All values together get `JSON_LIMIT` characters. After that, each value is cut to `SHOWN_LINE_LIMIT`.
        """
        characters_left, shown_arguments = JSON_LIMIT, []
        named_arguments = chain(named(self.job.task, self.call.args), self.call.kwargs.items())
        for name, value in islice(named_arguments, MOST_ARGUMENTS_SHOWN):
            text = pretty(value, max(characters_left, SHOWN_LINE_LIMIT))
            characters_left -= len(text)
            shown_arguments.append((shorten(name, SHOWN_LINE_LIMIT), text))
        return shown_arguments

    @property
    def defer_call(self) -> str:
        """Code that enqueues a copy of the job; empty if the page cannot show it."""
        return defer_call(self.job, self.call)

    @property
    def missing_arguments(self) -> int:
        return max(len(self.call.args) + len(self.call.kwargs) - MOST_ARGUMENTS_SHOWN, 0)

    @property
    def is_masked(self) -> bool:
        return (self.call.args, self.call.kwargs) != as_call(self.job.args, self.job.kwargs)

    @property
    def result(self) -> str | None:
        """The result as JSON; `None` if the job has not completed."""
        return (
            pretty(masked(self.job.task, self.job.result), JSON_LIMIT) if self.job.status == Status.COMPLETED else None
        )

    @property
    def outcome(self) -> str:
        """Why the job failed or was discarded, or a retrying job's last error."""
        has_error = self.job.status in (Status.FAILED, Status.DISCARDED) or self.is_retrying
        return clean(self.call.text(self.job.last_error), SHOWN_LINE_LIMIT * 4) if has_error else ""

    @property
    def is_retrying(self) -> bool:
        return self.job.status in WAITING and self.job.attempts > 0

    @cached_property
    def explanation(self) -> str:
        if self.is_final:
            return why_it_was_not_retried(self.job, self.attempts)
        return why_it_waits(self.job, self.now, Workforce.now())

    @property
    def timeout(self) -> str:
        return span(self.job.timeout or 0)

    @cached_property
    def attempts(self) -> list[ShownAttempt]:
        return [self._shown(attempt) for attempt in attempts_of(self.job)]

    @cached_property
    def progress(self) -> Progress | None:
        """The progress of the current or last attempt; `None` once the job has completed."""
        return None if self.job.status == Status.COMPLETED else self.job.current_progress

    @property
    def progress_line(self) -> str:
        return "" if self.progress is None else self.call.text(self.progress.line)

    @property
    def progress_age(self) -> str:
        if self.progress is None or self.progress.at is None or not self.is_running:
            return ""
        return gettext("Updated %(span)s ago") % {"span": span(max(self.now - self.progress.at, timedelta(0)))}

    @cached_property
    def logs(self) -> list[ShownLog]:
        return shown_logs(self.job, self.call.text)

    @property
    def other_logs(self) -> list[ShownLog]:
        """The logs of attempts that are not listed, because they had no error and were not the last one."""
        logs_of_attempts = [attempt.log for attempt in self.attempts]
        return [log for log in self.logs if log not in logs_of_attempts]

    @property
    def links(self) -> list[tuple[str, str]]:
        return links_of_job(self.job, self.now)

    @property
    def attempts_with_links(self) -> list[tuple[ShownAttempt, list[tuple[str, str]]]]:
        return [
            (attempt, links_of_attempt(self.job, attempt, self.now) if attempt.sentry_event_id else [])
            for attempt in self.attempts
        ]

    @property
    def attempts_come_first(self) -> bool:
        """Whether the page begins with the attempts, because the last attempt ended in an error."""
        return bool(self.attempts) and bool(self.attempts[0].exception or self.attempts[0].traceback)

    @property
    def missing_attempts(self) -> int:
        numbers = [attempt.number for attempt in self.attempts if attempt.number]
        return max(min(numbers) - 1, 0) if numbers else 0

    @property
    def attempts_made(self) -> str:
        """The number of attempts and their maximum, and the number of attempts before a manual retry."""
        earlier = number_of_attempts(self.job) - self.job.attempts
        if not earlier:
            return f"{self.job.attempts}/{self.job.max_attempts}"
        if not any(operation.verb == RETRY.name for operation in operations_of(self.job)):
            text = gettext("%(made)s/%(most)s · %(earlier)s before")
            return text % {"made": self.job.attempts, "most": self.job.max_attempts, "earlier": earlier}
        return ngettext(
            "%(made)s/%(most)s · %(earlier)s before the retry",
            "%(made)s/%(most)s · %(earlier)s before the retries",
            sum(operation.verb == RETRY.name for operation in operations_of(self.job)),
        ) % {"made": self.job.attempts, "most": self.job.max_attempts, "earlier": earlier}

    @property
    def timeline(self) -> list[Moment]:
        moments = timeline(self.job, self.attempts, self.now)
        return [replace(moment, reason=self.call.text(moment.reason)) for moment in moments]

    @property
    def waited(self) -> str:
        """How long the job was due before its last attempt began."""
        waited = self.attempts[0].waited if self.attempts else None
        return "" if waited is None else span(waited)

    @property
    def ran(self) -> str:
        """The last attempt's duration, or its duration so far if a worker runs it."""
        last_attempt = self.attempts[0] if self.attempts else None
        if last_attempt is None or self.holder or (last_attempt.duration is None and self.job.status != Status.RUNNING):
            return ""
        return last_attempt.took or span(self.now - (last_attempt.started_at or self.now))

    @property
    def metadata(self) -> str:
        return pretty(masked(self.job.task, self.job.metadata), JSON_LIMIT) if self.job.metadata else ""

    @property
    def facts_of_parts(self) -> list[tuple[PartFact, Any]]:
        return [(fact, fact.content(self.job)) for part in consoles() for fact in part.job_facts]

    def _shown(self, attempt: ShownAttempt) -> ShownAttempt:
        """Return the attempt with secrets masked and long texts cut. Other programs may have written these texts."""
        return replace(
            attempt,
            # A released or snoozed attempt is not counted, so the attempt after it has the same number. Of the logs
            # with this number, take the newest.
            log=next((log for log in self.logs if log.number == attempt.number), None),
            worker=shorten(worker_name(attempt.worker), SHOWN_LINE_LIMIT),
            exception=shorten(attempt.exception, SHOWN_LINE_LIMIT),
            sentry_event_id=shorten(attempt.sentry_event_id, SHOWN_LINE_LIMIT),
            message=clean(self.call.text(attempt.message), MESSAGE_LIMIT),
            traceback=clean(self.call.text(attempt.traceback), JSON_LIMIT),
        )


def pretty(value: Any, limit: int) -> str:
    """Format a value as indented JSON. Long text is cut in the middle."""
    return clean(json.dumps(value, indent=2, ensure_ascii=False), limit)
