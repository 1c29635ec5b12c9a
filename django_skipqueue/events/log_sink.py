"""Writes events as log lines, if the logger's level allows. A function of `events.logs` writes each line."""

from collections.abc import Callable, Mapping
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from ..values.part import lines_of_parts
from . import events, log_context, logs
from .events import Event

Lines = Mapping[type[Event], tuple[int, Callable[[Any], None]]]
"""For each kind of event that is logged: the lowest level of its lines, and the function that writes them."""


def _each(write_line: Callable[[Any], None]) -> Callable[[Any], None]:
    def write(event: Any) -> None:
        for attempt in event.attempts:
            write_line(attempt)

    return write


def _recovered(event: Any) -> None:
    for job in event.jobs:
        logs.job_recovered(job)


def _dropped(event: Any) -> None:
    for attempt in event.attempts:
        logs.outcome_dropped(attempt, event.reason)


LINES: Lines = {
    events.JobsAdmitted: (DEBUG, lambda event: logs.jobs_due(sum(event.counts.values()))),
    events.JobsPruned: (DEBUG, lambda event: logs.jobs_pruned(event.counts)),
    events.JobsRecovered: (WARNING, _recovered),
    events.AttemptStarted: (DEBUG, lambda event: logs.job_started(event.job, event.worker, event.wait_ms)),
    events.AttemptsCompleted: (INFO, lambda event: logs.completed(event.attempts)),
    events.AttemptsRetrying: (INFO, _each(logs.job_retrying)),
    events.AttemptsFailed: (ERROR, _each(logs.job_failed)),
    events.AttemptsDiscarded: (WARNING, _each(logs.job_discarded)),
    events.AttemptsCancelled: (INFO, _each(logs.job_cancelled)),
    events.LeasesLost: (WARNING, _each(logs.lease_lost)),
    events.OutcomesDropped: (INFO, _dropped),
    events.WorkerStarted: (INFO, lambda event: logs.worker_started(event.worker, event.worker_id)),
    events.WorkerStopped: (INFO, lambda event: logs.worker_stopped(event.worker, event.worker_id, event.jobs_done)),
    events.QueuePaused: (
        WARNING,
        lambda event: logs.queue_paused(event.queue_name, event.until, event.by, event.reason),
    ),
    events.QueueResumed: (INFO, lambda event: logs.queue_resumed(event.queue_name, event.by)),
    events.OutcomeRefused: (ERROR, lambda event: logs.outcome_refused(event.job_id, event.error)),
    events.NotifyFailed: (WARNING, lambda event: logs.notify_failed(event.queue_name, event.error)),
}
"""The lines of the core's events."""


def line_of(kind: type[Event]) -> tuple[int, Callable[[Any], None]] | None:
    """The lowest level of the lines of this kind of event, and the function that writes them."""
    return LINES.get(kind) or lines_of_parts.get(kind)


class LogSink:
    def wants(self, kind: type[Event]) -> bool:
        """See `Sink.wants`. An event whose level is disabled costs nothing."""
        found = line_of(kind)
        return found is not None and logs.logger.isEnabledFor(found[0])

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        alive()
        if line := line_of(type(event)):
            with log_context.about(getattr(event, "database", None)):
                line[1](event)
