"""The sinks get events, and signals are sent for changes by operators and by services."""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.dispatch import Signal

from django_skipqueue import signals
from django_skipqueue.events import events, sinks
from django_skipqueue.events.events import Event, NotifyFailed
from django_skipqueue.events.sinks import send, wanted
from django_skipqueue.exceptions import JobCancelled
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import EncodedCall

from ..app import jobs
from ..app.rows import make_job

Received = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def record_signal() -> Iterator[Callable[[Signal], Received]]:
    """Returns, for a signal, a list that collects the sender and the arguments of each sending."""
    signals_and_receivers: list[tuple[Signal, Callable[..., None]]] = []

    def connect(signal: Signal) -> Received:
        received: Received = []

        def receive(signal: Signal, sender: str, **values: Any) -> None:
            received.append((sender, values))

        signal.connect(receive, weak=False)
        signals_and_receivers.append((signal, receive))
        return received

    yield connect
    for signal, receive in signals_and_receivers:
        signal.disconnect(receive)


def event_classes(base: type[Event] = Event) -> set[type[Event]]:
    """Every class of event that is sent: the subclasses in the package that have no further subclass there."""
    subclasses = [subclass for subclass in base.__subclasses__() if subclass.__module__.startswith("django_skipqueue.")]
    return {kind for subclass in subclasses for kind in event_classes(subclass)} if subclasses else {base}


def test_each_class_of_event_has_a_log_level_or_a_signal() -> None:
    assert not [kind for kind in event_classes() if kind.level is None and kind.signal is None]


def test_each_signal_belongs_to_one_class_of_event() -> None:
    signal_names = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    sent_signal_ids = [id(kind.signal) for kind in event_classes() if kind.signal is not None]
    assert len(set(sent_signal_ids)) == len(sent_signal_ids) == len(signal_names)


def test_the_fields_of_an_event_cannot_be_assigned(subtests: pytest.Subtests) -> None:
    for kind in sorted(event_classes(), key=str):
        with subtests.test(kind=kind):
            assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


ARGUMENTS: dict[str, list[Any]] = {
    "postpone": [timedelta(days=9000)],
    "reschedule": [timedelta(days=9000)],
    "change_queue": ["mail"],
    "change_priority": [7],
}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("retry", "failed"),
        ("discard", "queued"),
        ("cancel", "running"),
        ("run_now", "scheduled"),
        ("postpone", "queued"),
        ("reschedule", "queued"),
        ("change_queue", "queued"),
        ("change_priority", "queued"),
    ],
)
def test_a_change_by_an_operator_sends_one_signal_for_all_changed_jobs(
    record_signal: Callable[[Signal], Received], verb: str, status: str
) -> None:
    changed_ids = [make_job(status).pk for _ in range(2)]
    other_id = make_job("completed").pk
    received = record_signal(signals.jobs_operated)
    arguments = ARGUMENTS.get(verb, [])
    count = getattr(Job.objects.filter(pk__in=[*changed_ids, other_id]), verb)(*arguments, by="ada", reason="why")
    assert count == 2
    [(sender, values)] = received
    assert (sender, sorted(values.pop("job_ids"))) == (verb, changed_ids)
    assert values == {"database": "default", "by": "ada", "reason": "why"}
    assert getattr(Job.objects.filter(pk=other_id), verb)(*arguments) == 0
    assert len(received) == 1, "nothing was changed"


@pytest.mark.django_db
def test_admitting_pruning_and_releasing_jobs_send_signals(
    record_signal: Callable[[Signal], Received], settings: Any
) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    admitted, pruned, released = map(record_signal, (signals.jobs_admitted, signals.jobs_pruned, signals.jobs_released))
    make_job("scheduled", run_after=timedelta(seconds=-1))
    make_job("completed", finished_at=timedelta(days=-1))
    store = Store("default")
    store.admit()
    store.prune()
    claimed_jobs = store.claim(queue_names=["default"], limit=1, worker_id="w")
    store.release([job.ref for job in claimed_jobs])
    assert admitted == [("default", {"counts": {"default": 1}})]
    assert pruned == [("default", {"counts": {"completed": 1}})]
    assert released == [("default", {"job_ids": [claimed_jobs[0].id]})]
    store.admit()
    store.prune()
    store.release([job.ref for job in claimed_jobs])
    assert len(admitted) == len(pruned) == len(released) == 1, "nothing was changed"


@pytest.mark.django_db
def test_a_store_passes_its_events_to_its_send_function(record_signal: Callable[[Signal], Received]) -> None:
    """A supervisor relies on this: no receiver runs in the thread that uses the store."""
    received = record_signal(signals.jobs_admitted)
    sent_events: list[Event] = []
    make_job("scheduled", run_after=timedelta(seconds=-1))
    Store("default", send=sent_events.append).admit()
    assert [type(event) for event in sent_events] == [events.JobsAdmitted]
    assert not received


@pytest.mark.django_db
def test_a_store_with_a_send_function_does_not_call_receivers_of_job_deferred(
    record_signal: Callable[[Signal], Received],
) -> None:
    received = record_signal(signals.job_deferred)
    sent_events: list[Event] = []
    jobs.noop.defer()
    assert len(received) == 1
    spec, call = jobs.noop.spec(), EncodedCall("[]", "{}")
    Store("default", send=sent_events.append).enqueue(spec, call)
    assert [type(event) for event in sent_events] == [events.JobsDeferred]
    assert len(received) == 1


class Broken:
    """A sink that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def wants(self, kind: type[Event]) -> bool:
        return True

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        raise self.error


class Counting:
    """A sink that counts the events that it gets."""

    count = 0

    def wants(self, kind: type[Event]) -> bool:
        return True

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        self.count += 1


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("no"), KeyboardInterrupt("no")])
def test_a_sink_that_raises_is_logged_and_the_other_sinks_get_the_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    counting = Counting()
    monkeypatch.setattr(sinks, "SINKS", [Broken(error), counting])
    send(NotifyFailed("default", "default", OSError()))
    assert counting.count == 1
    assert "The event sink Broken raised" in caplog.text


class Undecided(Counting):
    """A sink that raises when it is asked whether it wants an event."""

    def wants(self, kind: type[Event]) -> bool:
        raise ValueError("no")


def test_a_sink_whose_wants_raises_is_logged_and_gets_no_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The control loop calls `wants` in its own thread."""
    undecided = Undecided()
    monkeypatch.setattr(sinks, "SINKS", [undecided])
    assert not wanted(NotifyFailed)
    send(NotifyFailed("default", "default", OSError()))
    assert undecided.count == 0
    assert "The event sink Undecided raised" in caplog.text


class Interrupted(Counting):
    """A sink in which an attempt is interrupted while `wants` runs."""

    def wants(self, kind: type[Event]) -> bool:
        raise JobCancelled("ended")


def test_an_interruption_of_an_attempt_passes_through_the_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "SINKS", [Broken(JobCancelled("ended"))])
    with pytest.raises(JobCancelled):
        send(NotifyFailed("default", "default", OSError()))
    monkeypatch.setattr(sinks, "SINKS", [Interrupted()])
    with pytest.raises(JobCancelled):
        wanted(NotifyFailed)


def test_an_event_is_wanted_if_any_sink_wants_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert wanted(NotifyFailed)
    caplog.set_level(logging.CRITICAL, logger="django_skipqueue")
    assert not wanted(NotifyFailed)  # the log leaves out this level
    monkeypatch.setattr(sinks, "SINKS", [Counting()])
    assert wanted(NotifyFailed)
