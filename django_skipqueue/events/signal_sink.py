"""Sends events as Django signals. `django_skipqueue.signals` defines the signals."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.dispatch import Signal

from .. import signals
from ..values.part import signals_of_parts
from . import events
from .events import Event

Sent = Iterator[tuple[str, dict[str, Any]]]
"""The sender and the arguments of each signal that is sent for an event."""


def itself(sender: str) -> Callable[[Any], Sent]:
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


Signals = Mapping[type[Event], tuple[Signal, Callable[[Any], Sent]]]
"""For each kind of event that has a signal: the signal, and the function that makes its senders and arguments."""

SIGNALS: Signals = {
    events.JobsDeferred: (signals.job_deferred, itself("task")),
    events.JobsAdmitted: (signals.jobs_admitted, itself("database")),
    events.JobsReleased: (signals.jobs_released, itself("database")),
    events.JobsRecovered: (signals.job_recovered, _recovered),
    events.JobsOperated: (signals.jobs_operated, itself("verb")),
    events.JobsPruned: (signals.jobs_pruned, itself("database")),
    events.AttemptStarted: (signals.job_started, _started),
    events.AttemptsCompleted: (signals.job_completed, _attempts),
    events.AttemptsRetrying: (signals.job_retrying, _attempts),
    events.AttemptsFailed: (signals.job_failed, _attempts),
    events.AttemptsDiscarded: (signals.job_discarded, _attempts),
    events.AttemptsCancelled: (signals.job_cancelled, _attempts),
    events.LeasesLost: (signals.lease_lost, _attempts),
    events.WorkerStarted: (signals.worker_started, itself("worker")),
    events.WorkerStopped: (signals.worker_stopped, itself("worker")),
    events.QueuePaused: (signals.queue_paused, itself("queue_name")),
    events.QueueResumed: (signals.queue_resumed, itself("queue_name")),
}
"""The signals of the core's events."""


def signal_of(kind: type[Event]) -> tuple[Signal, Callable[[Any], Sent]] | None:
    """The signal of this kind of event, and the function that makes its senders and arguments."""
    return SIGNALS.get(kind) or signals_of_parts.get(kind)


class SignalSink:
    """See `sinks.Sink`. The exception of a receiver is logged, and stops nothing."""

    def wants(self, kind: type[Event]) -> bool:
        found = signal_of(kind)
        return found is not None and bool(found[0].receivers)

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        if found := signal_of(type(event)):
            signal, sent = found
            for sender, values in sent(event):
                alive()
                signals.emit(signal, sender, **values)
