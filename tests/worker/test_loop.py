"""`Loop`: runs the services that are due, in their order. An error of one service does not stop another."""

import select
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DataError, OperationalError, connections

from django_skipqueue.queue.notify import wake
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import services
from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.control_connection import ControlConnection
from django_skipqueue.worker.loop import Loop, Periodic, Service, Timer, Wakeup

from ..app.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")


class RecordingService(Periodic):
    """A service that adds its name to `runs` when it runs."""

    def __init__(self, name: str, runs: list[str], *, error: Exception | None = None) -> None:
        self.name = name
        self.runs = runs
        self.error = error
        self.payloads: list[Collection[str]] = []
        self.then_due: Periodic | None = None  # a service that this service makes due

    def run(self, now: float) -> None:
        self.runs.append(self.name)
        if self.then_due:
            self.then_due.due_at = 0.0
        if self.error:
            store.next_due()  # the loop sees that the connection works
            raise self.error
        self.due_at = NEVER

    def notified(self, payloads: Collection[str]) -> None:
        self.payloads.append(payloads)


@pytest.fixture
def control_thread() -> Iterator[ThreadPoolExecutor]:
    """A thread for a control connection, which replaces Django's connection of the thread."""
    with ThreadPoolExecutor(1) as thread:
        yield thread
        thread.submit(connections.close_all).result()
    while wakeups:
        wakeups.pop().close()


wakeups: list[Wakeup] = []
"""The `Wakeup`s of the test's loops. Only the main thread can close them."""


def make_loop(heartbeat: Service, *services: Service) -> Loop:
    wakeups.append(Wakeup())
    return Loop(ControlConnection(store, who="test"), wakeups[-1], heartbeat=heartbeat, services=services)


def run_due_services(heartbeat: Service, *services: Service) -> float:
    loop = make_loop(heartbeat, *services)
    loop.run_due()
    return loop.due_at


def test_a_due_heartbeat_comes_before_each_service(control_thread: ThreadPoolExecutor) -> None:
    runs: list[str] = []
    heartbeat, first_service, second_service = (
        RecordingService(name, runs) for name in ("heartbeat", "first", "second")
    )
    first_service.then_due = heartbeat
    assert control_thread.submit(run_due_services, heartbeat, first_service, second_service).result() == NEVER
    assert runs == ["heartbeat", "first", "heartbeat", "second"]


class ServiceThatNeedsAHeartbeat(RecordingService):
    """A service that may only run after a recent heartbeat."""

    needs_fresh_heartbeat = True


def test_a_service_that_needs_a_fresh_heartbeat_runs_after_a_heartbeat(control_thread: ThreadPoolExecutor) -> None:
    runs: list[str] = []
    heartbeat, careful_service, other_service = (
        RecordingService("heartbeat", runs),
        ServiceThatNeedsAHeartbeat("careful", runs),
        RecordingService("other", runs),
    )
    heartbeat.due_at = NEVER
    control_thread.submit(run_due_services, heartbeat, careful_service, other_service).result()
    assert runs == ["heartbeat", "careful", "other"]


def test_other_services_run_even_if_the_database_refuses_the_statement_of_one(
    control_thread: ThreadPoolExecutor,
) -> None:
    runs: list[str] = []
    heartbeat, second_service = RecordingService("heartbeat", runs), RecordingService("second", runs)
    first_service = RecordingService("first", runs, error=DataError("no"))
    control_thread.submit(run_due_services, heartbeat, first_service, second_service).result()
    assert runs == ["heartbeat", "first", "second"]
    assert (first_service.has_failed, second_service.has_failed) == (True, False)


def test_while_the_connection_is_down_only_services_without_statements_run(
    control_thread: ThreadPoolExecutor,
) -> None:
    runs: list[str] = []

    def run() -> tuple[float, float]:
        heartbeat, failing_service = (
            RecordingService("heartbeat", runs),
            RecordingService("broken", runs, error=OperationalError("gone")),
        )
        failing_service.refused = None  # type: ignore[assignment]

        def record_run() -> None:
            runs.append(timer.name)
            timer_due.pop(0)

        timer = Timer("timer", lambda: timer_due[0], record_run)
        loop = make_loop(heartbeat, failing_service, RecordingService("waits", runs), timer)
        loop.run_due()
        return loop.due_at, loop.control.retry_at

    timer_due = [0.0, NEVER]
    due_at, retry_at = control_thread.submit(run).result()
    assert runs == ["heartbeat", "broken", "timer"]
    assert due_at == retry_at > 0


def test_a_service_without_statements_does_not_mark_the_connection_as_working(
    control_thread: ThreadPoolExecutor,
) -> None:
    class ServiceWithoutStatements(RecordingService):
        def run(self, now: float) -> None:
            self.due_at = NEVER

    def run() -> bool:
        heartbeat, failing_service = (
            RecordingService("heartbeat", []),
            RecordingService("broken", [], error=OperationalError("gone")),
        )
        failing_service.refused = None  # type: ignore[assignment]
        loop = make_loop(heartbeat, failing_service, ServiceWithoutStatements("idle", []))
        loop.run_due()
        loop.control.retry_at = 0.0
        failing_service.due_at = NEVER
        loop.run_due()
        return loop.control.is_broken

    assert control_thread.submit(run).result()


def test_notifications_reach_all_services(control_thread: ThreadPoolExecutor) -> None:
    services = [RecordingService(name, []) for name in ("heartbeat", "first", "second")]

    def run() -> None:
        loop = make_loop(*services)
        for service in services:
            service.due_at = NEVER
        loop.control.listen()
        with ThreadPoolExecutor(1) as other_thread:
            other_thread.submit(notify_and_close).result()

        def all_are_notified() -> bool:
            loop.sleep(until=time.monotonic() + 0.05)
            return all(service.payloads for service in services)

        wait_until(all_are_notified)

    control_thread.submit(run).result()
    assert [service.payloads for service in services] == [[["q"]]] * 3


def test_notifications_that_come_while_a_service_runs_reach_the_next_service(
    control_thread: ThreadPoolExecutor,
) -> None:
    runs: list[str] = []

    class ServiceDuringWhichANotificationComes(RecordingService):
        def run(self, now: float) -> None:
            super().run(now)
            with ThreadPoolExecutor(1) as other_thread:
                other_thread.submit(notify_and_close).result()
            assert select.select([connections["default"].connection], [], [], DEADLINE)[0], (
                "the notification has arrived"
            )

    class ServiceThatRecordsNotifications(RecordingService):
        def run(self, now: float) -> None:
            super().run(now)
            runs.append(f"after {self.payloads}")

    def run() -> None:
        heartbeat = RecordingService("heartbeat", runs)
        heartbeat.due_at = NEVER
        loop = make_loop(
            heartbeat, ServiceDuringWhichANotificationComes("slow", runs), ServiceThatRecordsNotifications("next", runs)
        )
        loop.control.listen()
        loop.run_due()

    control_thread.submit(run).result()
    assert runs == ["slow", "next", "after [['q']]"]


def notify_and_close() -> None:
    wake(Store("default"), ["q"])
    connections.close_all()


def test_each_queue_service_needs_only_the_store_and_has_a_name() -> None:
    queue_services = [service(store) for service in services()]
    assert len({service.name for service in queue_services}) == len(services())
