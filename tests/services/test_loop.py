"""`ServiceLoop`: what is due, in which order, each apart from the others."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DataError, connections

from django_skipqueue.runtime.control_connection import ControlConnection
from django_skipqueue.services import SERVICES
from django_skipqueue.services.loop import ServiceLoop
from django_skipqueue.services.service import Service
from django_skipqueue.store import Store

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")
NEVER = float("inf")


class Noted(Service):
    """A service that notes its runs."""

    def __init__(self, name: str, runs: list[str], *, error: Exception | None = None) -> None:
        super().__init__(store)
        self.name = name
        self.runs = runs
        self.error = error
        self.hurried = 0
        self.then_due: Service | None = None  # a service that is due once this one is done

    def run(self) -> float:
        self.runs.append(self.name)
        if self.then_due:
            self.then_due.due_at = 0.0
        if self.error:
            store.next_due()  # a connection that works
            raise self.error
        return NEVER

    def hurry(self) -> None:
        self.hurried += 1


@pytest.fixture
def control() -> Iterator[ThreadPoolExecutor]:
    """A thread for a control connection, which takes the place of Django's in it."""
    with ThreadPoolExecutor(1) as thread:
        yield thread
        thread.submit(connections.close_all).result()


def run_due(heartbeat: Service, *others: Service) -> float:
    loop = ServiceLoop(ControlConnection(store, who="test"), heartbeat, others)
    loop.run_due()
    return loop.due_at


def test_a_due_heartbeat_comes_before_each(control: ThreadPoolExecutor) -> None:
    runs: list[str] = []
    heartbeat, first, second = (Noted(name, runs) for name in ("heartbeat", "first", "second"))
    first.then_due = heartbeat
    assert control.submit(run_due, heartbeat, first, second).result() == NEVER
    assert runs == ["heartbeat", "first", "heartbeat", "second"]


def test_a_service_that_makes_the_heartbeat_due_has_it_done_first(control: ThreadPoolExecutor) -> None:
    runs: list[str] = []
    heartbeat, recover = Noted("heartbeat", runs), Noted("recover", runs)
    heartbeat.due_at = NEVER
    recover.makes_due = heartbeat
    control.submit(run_due, heartbeat, recover).result()
    assert runs == ["heartbeat", "recover"]


def test_one_that_the_database_refuses_keeps_no_other_from_its_work(control: ThreadPoolExecutor) -> None:
    runs: list[str] = []
    heartbeat, second = Noted("heartbeat", runs), Noted("second", runs)
    first = Noted("first", runs, error=DataError("no"))
    control.submit(run_due, heartbeat, first, second).result()
    assert runs == ["heartbeat", "first", "second"]
    assert (first.is_refused, second.is_refused) == (True, False)


def test_all_are_told_to_hurry(control: ThreadPoolExecutor) -> None:
    services = [Noted("service", []) for _ in range(2)]
    ServiceLoop(None, Noted("heartbeat", []), services).hurry()  # type: ignore[arg-type]
    assert [service.hurried for service in services] == [1, 1]


def test_each_service_of_the_queue_is_made_of_the_store_alone_and_has_a_name_for_the_log() -> None:
    made = [service(store) for service in SERVICES]
    assert len({service.name for service in made}) == len(SERVICES)
