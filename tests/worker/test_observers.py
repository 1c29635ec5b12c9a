"""`Observers`: optional parts are notified of claimed jobs, ended attempts and events of a worker process."""

from datetime import UTC, datetime

import pytest

from django_skipqueue.events.events import AttemptsCompleted, Event, JobsRecovered
from django_skipqueue.queue.store import Store
from django_skipqueue.values import part as parts
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.part import Part, install_parts
from django_skipqueue.values.records import Attempt, ClaimedJob, RecoveredJob
from django_skipqueue.worker.dispatcher import Observers
from django_skipqueue.worker.loop import Timer

from ..harness.observer import Remembering

JOB = ClaimedJob(
    id=1, lease=1, task="t", queue_name="q", args="[]", kwargs="{}", attempt=1, max_attempts=3,
    priority=0, run_after=1.0, locked_at=2.0, metadata="{}",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_installed_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "parts_by_name", {})


def test_without_observers_events_are_sent() -> None:
    install_parts([Part(name="silent")])
    observers, sent_events = Observers(), list[Event]()
    observers.observing(sent_events.append)(JobsRecovered("default", []))
    assert (observers.services(Store("default")), sent_events) == ([], [JobsRecovered("default", [])])


def test_each_observer_gets_claims_ended_attempts_and_events() -> None:
    services: list[tuple[Store, Remembering]] = []

    def make_service(store: Store, observer: Remembering) -> Timer:
        services.append((store, observer))
        return Timer("write", lambda: 0.0, lambda: None)

    install_parts([Part(name="a", observers=((Remembering, make_service), (Remembering, make_service)))])
    observers, sent_events, store = Observers(), list[Event](), Store("default")
    attempt = Attempt(JOB, COMPLETED, started=0.0, ended=0.1, worker="w")
    recovered_at = datetime(2027, 1, 15, tzinfo=UTC)
    recovered_event = JobsRecovered(
        "default",
        [
            RecoveredJob(
                id=3, task="t", queue_name="q", attempt=1, status="queued",
                locked_by="w:1", locked_at=recovered_at, metadata="{}", recovered_at=recovered_at,
            )
        ],
    )  # fmt: skip
    for observer in observers.all:
        observer.claimed([JOB])
        observer.ended(AttemptsCompleted, [attempt])
    observers.observing(sent_events.append)(recovered_event)
    assert len(observers.services(store)) == 2
    assert services == [(store, observer) for observer in observers.all]
    for observer in [observer for _, observer in services]:
        assert (observer.jobs, observer.events) == ([JOB], [recovered_event])
        assert observer.attempts == [(AttemptsCompleted, attempt)]
    assert sent_events == [recovered_event]
