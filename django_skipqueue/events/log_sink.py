"""Writes events as log lines, if the logger's level allows. A function of `events.logs` writes each line."""

from collections.abc import Callable
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from ..parts.alerts import logs as alert_logs
from ..parts.batches import events as batch_events
from ..parts.batches import events as batch_logs
from ..parts.schedules import events as schedule_logs
from . import events, log_context, logs
from . import logs as queue_logs
from .events import Event


def _each(write_line: Callable[[Any], None]) -> Callable[[Any], None]:
    def write(event: Any) -> None:
        for attempt in event.attempts:
            write_line(attempt)

    return write


def _recovered(event: Any) -> None:
    for job in event.jobs:
        logs.job_recovered(job)


def _batches(event: Any) -> None:
    for batch in event.batches:
        batch_logs.batch_finished(batch)


def _dropped(event: Any) -> None:
    for attempt in event.attempts:
        logs.outcome_dropped(attempt, event.reason)


def _dependants(event: Any) -> None:
    for job in event.jobs:
        batch_logs.dependant_discarded(job)


LINES: dict[type[Event], tuple[int, Callable[[Any], None]]] = {
    events.JobsAdmitted: (DEBUG, lambda event: logs.jobs_due(sum(event.counts.values()))),
    batch_events.DependantsDiscarded: (WARNING, _dependants),
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
        lambda event: queue_logs.queue_paused(event.queue_name, event.until, event.by, event.reason),
    ),
    events.QueueResumed: (INFO, lambda event: queue_logs.queue_resumed(event.queue_name, event.by)),
    events.QueueLimited: (
        WARNING,
        lambda event: queue_logs.queue_limited(event.queue_name, event.concurrency, event.by),
    ),
    events.QueueRated: (
        WARNING,
        lambda event: queue_logs.queue_rated(event.queue_name, event.interval, event.by),
    ),
    events.ScheduleFired: (INFO, schedule_logs.schedule_fired),
    events.ScheduleSkipped: (INFO, schedule_logs.schedule_skipped),
    events.ScheduleFailed: (ERROR, schedule_logs.schedule_failed),
    events.SchedulePaused: (WARNING, schedule_logs.schedule_paused),
    events.ScheduleResumed: (INFO, schedule_logs.schedule_resumed),
    batch_events.BatchesFinished: (INFO, _batches),
    batch_events.BatchNotFinished: (ERROR, batch_logs.batch_not_finished),
    batch_events.CallbackSkipped: (WARNING, batch_logs.callback_skipped),
    events.AlertRaised: (ERROR, alert_logs.alert_raised),
    events.AlertOver: (INFO, alert_logs.alert_over),
    events.OutcomeRefused: (ERROR, lambda event: logs.outcome_refused(event.job_id, event.error)),
    events.NotifyFailed: (WARNING, lambda event: logs.notify_failed(event.queue_name, event.error)),
}
"""For each kind of event that is logged: the lowest level of its lines, and the function that writes them."""


class LogSink:
    def wants(self, kind: type[Event]) -> bool:
        """See `Sink.wants`. An event whose level is disabled costs nothing."""
        found = LINES.get(kind)
        return found is not None and logs.logger.isEnabledFor(found[0])

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        alive()
        with log_context.about(getattr(event, "database", None)):
            LINES[type(event)][1](event)
