"""Sends events as Django signals. `django_skipqueue.signals` defines the signals."""

from collections.abc import Callable, Iterator
from typing import Any

from django.dispatch import Signal

from .. import signals
from ..parts.batches import events as batch_events
from . import events
from .events import Event

Sent = Iterator[tuple[str, dict[str, Any]]]
"""The sender and the arguments of each signal that is sent for an event."""


def _itself(sender: str) -> Callable[[Any], Sent]:
    """Make a function that turns an event into one signal. `sender` is the field of the event that names the sender."""

    def sent(event: Any) -> Sent:
        values = dict(vars(event))
        yield values.pop(sender), values

    return sent


def _attempts(event: Any) -> Sent:
    for attempt in event.attempts:
        yield attempt.job.task, {"attempt": attempt}


def _started(event: Any) -> Sent:
    yield event.job.task, dict(vars(event))


def _recovered(event: Any) -> Sent:
    for job in event.jobs:
        yield job.task, {"database": event.database, "job": job}


def _batches(event: Any) -> Sent:
    for batch in event.batches:
        yield batch.name, {"database": event.database, "batch": batch}


def _dependants(event: Any) -> Sent:
    for job in event.jobs:
        yield job.task, {"database": event.database, "job": job}


SIGNALS: dict[type[Event], tuple[Signal, Callable[[Any], Sent]]] = {
    events.JobsDeferred: (signals.job_deferred, _itself("task")),
    events.JobsAdmitted: (signals.jobs_admitted, _itself("database")),
    batch_events.DependantsDiscarded: (signals.dependant_discarded, _dependants),
    events.JobsReleased: (signals.jobs_released, _itself("database")),
    events.JobsRecovered: (signals.job_recovered, _recovered),
    events.JobsOperated: (signals.jobs_operated, _itself("verb")),
    events.JobsPruned: (signals.jobs_pruned, _itself("database")),
    events.AttemptStarted: (signals.job_started, _started),
    events.AttemptsCompleted: (signals.job_completed, _attempts),
    events.AttemptsRetrying: (signals.job_retrying, _attempts),
    events.AttemptsFailed: (signals.job_failed, _attempts),
    events.AttemptsDiscarded: (signals.job_discarded, _attempts),
    events.AttemptsCancelled: (signals.job_cancelled, _attempts),
    events.LeasesLost: (signals.lease_lost, _attempts),
    batch_events.BatchesFinished: (signals.batch_finished, _batches),
    events.WorkerStarted: (signals.worker_started, _itself("worker")),
    events.WorkerStopped: (signals.worker_stopped, _itself("worker")),
    events.QueuePaused: (signals.queue_paused, _itself("queue_name")),
    events.QueueResumed: (signals.queue_resumed, _itself("queue_name")),
    events.AlertRaised: (signals.alert_raised, _itself("rule")),
    events.AlertOver: (signals.alert_over, _itself("rule")),
}
"""For each kind of event that has a signal: the signal, and the function that makes its senders and arguments."""


class SignalSink:
    """See `sinks.Sink`. The exception of a receiver is logged, and stops nothing."""

    def wants(self, kind: type[Event]) -> bool:
        found = SIGNALS.get(kind)
        return found is not None and bool(found[0].receivers)

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        signal, sent = SIGNALS[type(event)]
        for sender, values in sent(event):
            alive()
            signals.emit(signal, sender, **values)
