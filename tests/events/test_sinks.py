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
def receive() -> Iterator[Callable[[Signal], Received]]:
    """Collect the senders and the arguments with which a signal is sent."""
    connected: list[tuple[Signal, Callable[..., None]]] = []

    def start(signal: Signal) -> Received:
        received: Received = []

        def note(signal: Signal, sender: str, **values: Any) -> None:
            received.append((sender, values))

        signal.connect(note, weak=False)
        connected.append((signal, note))
        return received

    yield start
    for signal, note in connected:
        signal.disconnect(note)


def kinds(base: type[Event] = Event) -> set[type[Event]]:
    """Every kind of event that is sent: the classes of the package without a subclass in the package."""
    own = [each for each in base.__subclasses__() if each.__module__.startswith("django_skipqueue.")]
    return {kind for each in own for kind in kinds(each)} if own else {base}


def test_each_kind_of_event_has_a_sink() -> None:
    assert not [kind for kind in kinds() if kind.level is None and kind.signal is None]


def test_each_signal_is_of_one_kind_of_event() -> None:
    named = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    sent = [id(kind.signal) for kind in kinds() if kind.signal is not None]
    assert len(set(sent)) == len(sent) == len(named)


def test_an_event_cannot_be_changed(subtests: pytest.Subtests) -> None:
    for kind in sorted(kinds(), key=str):
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
def test_a_verb_of_an_operator_is_signalled_once_for_all_jobs(
    receive: Callable[[Signal], Received], verb: str, status: str
) -> None:
    changed = [make_job(status).pk for _ in range(2)]
    other = make_job("completed").pk
    received = receive(signals.jobs_operated)
    arguments = ARGUMENTS.get(verb, [])
    done = getattr(Job.objects.filter(pk__in=[*changed, other]), verb)(*arguments, by="ada", reason="why")
    assert done == 2
    [(sender, values)] = received
    assert (sender, sorted(values.pop("job_ids"))) == (verb, changed)
    assert values == {"database": "default", "by": "ada", "reason": "why"}
    assert getattr(Job.objects.filter(pk=other), verb)(*arguments) == 0
    assert len(received) == 1, "nothing was changed"


@pytest.mark.django_db
def test_changes_by_services_are_signalled(receive: Callable[[Signal], Received], settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    admitted, pruned, released = map(receive, (signals.jobs_admitted, signals.jobs_pruned, signals.jobs_released))
    make_job("scheduled", run_after=timedelta(seconds=-1))
    make_job("completed", finished_at=timedelta(days=-1))
    store = Store("default")
    store.admit()
    store.prune()
    claimed = store.claim(queue_names=["default"], limit=1, worker_id="w")
    store.release([job.ref for job in claimed])
    assert admitted == [("default", {"counts": {"default": 1}})]
    assert pruned == [("default", {"counts": {"completed": 1}})]
    assert released == [("default", {"job_ids": [claimed[0].id]})]
    store.admit()
    store.prune()
    store.release([job.ref for job in claimed])
    assert len(admitted) == len(pruned) == len(released) == 1, "nothing was changed"


@pytest.mark.django_db
def test_a_store_passes_its_events_to_its_send_function(receive: Callable[[Signal], Received]) -> None:
    """A supervisor relies on this: no receiver runs in the thread that uses the store."""
    received = receive(signals.jobs_admitted)
    sent: list[Event] = []
    make_job("scheduled", run_after=timedelta(seconds=-1))
    Store("default", send=sent.append).admit()
    assert [type(event) for event in sent] == [events.JobsAdmitted]
    assert not received


@pytest.mark.django_db
def test_a_service_that_enqueues_calls_no_receiver(receive: Callable[[Signal], Received]) -> None:
    received = receive(signals.job_deferred)
    sent: list[Event] = []
    jobs.noop.defer()
    assert len(received) == 1
    spec, call = jobs.noop.spec(), EncodedCall("[]", "{}")
    Store("default", send=sent.append).enqueue(spec, call)
    assert [type(event) for event in sent] == [events.JobsDeferred]
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
    """A sink that counts what it gets."""

    count = 0

    def wants(self, kind: type[Event]) -> bool:
        return True

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        self.count += 1


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("no"), KeyboardInterrupt("no")])
def test_a_sink_that_raises_harms_no_other_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    counting = Counting()
    monkeypatch.setattr(sinks, "SINKS", [Broken(error), counting])
    send(NotifyFailed("default", "default", OSError()))
    assert counting.count == 1
    assert "The event sink Broken raised" in caplog.text


class Undecided(Counting):
    """A sink that cannot say what it wants."""

    def wants(self, kind: type[Event]) -> bool:
        raise ValueError("no")


def test_a_sink_that_cannot_say_what_it_wants_gets_nothing_and_harms_nobody(
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
    """A sink that is interrupted by the end of an attempt while it says what it wants."""

    def wants(self, kind: type[Event]) -> bool:
        raise JobCancelled("ended")


def test_the_end_of_an_attempt_is_not_taken_for_a_broken_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "SINKS", [Broken(JobCancelled("ended"))])
    with pytest.raises(JobCancelled):
        send(NotifyFailed("default", "default", OSError()))
    monkeypatch.setattr(sinks, "SINKS", [Interrupted()])
    with pytest.raises(JobCancelled):
        wanted(NotifyFailed)


def test_an_event_that_no_sink_wants_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert wanted(NotifyFailed)
    caplog.set_level(logging.CRITICAL, logger="django_skipqueue")
    assert not wanted(NotifyFailed)
    monkeypatch.setattr(sinks, "SINKS", [Counting()])
    assert wanted(NotifyFailed)
