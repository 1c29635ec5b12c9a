"""The outbox of the page replay-safe works: its task posts events to a real server, which refuses some of them.

The server can also lose a response.
"""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from django.db import transaction

from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs

from .test_examples import run_blocks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("registry")]


class OtherSystem(ThreadingHTTPServer):
    """Accepts events by POST. A planned response is a status, or `None`: the event is accepted without a response."""

    def __init__(self) -> None:
        self.plan: dict[str, list[int | None]] = {}
        """The planned responses to an event, by its name. Later responses are 204."""
        self.received: list[tuple[int, str, int | None]] = []
        """Order, event and planned response of each request."""
        self.keys: dict[str, set[str]] = {}
        """The idempotency keys of the requests, by the name of the event."""
        super().__init__(("127.0.0.1", 0), Handler)

    def answer(self, key: str, order_id: int, event: str) -> int | None:
        status = (self.plan.get(event) or [204]).pop(0)
        self.received.append((order_id, event, status))
        self.keys.setdefault(event, set()).add(key)
        return status

    def accepted_events(self, order_id: int) -> list[str]:
        """The accepted events of an order, in the order of their arrival."""
        return [event for order, event, status in self.received if order == order_id and status in (204, None)]


class Handler(BaseHTTPRequestHandler):
    """Answers each request as the other system has planned."""

    server: OtherSystem

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.answer(self.headers["Idempotency-Key"], message["order_id"], message["event"])
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture
def other_system(settings: Any) -> Iterator[OtherSystem]:
    with OtherSystem() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        settings.EVENTS_URL = f"http://127.0.0.1:{server.server_address[1]}/events"
        yield server
        server.shutdown()
        thread.join()


def defer_events(page: Any, *events: tuple[int, str]) -> None:
    with transaction.atomic():
        for order_id, event in events:
            page.publish.defer(order_id=order_id, event=event, event_id=f"id of {event}")


def test_events_of_an_order_arrive_in_order_although_the_other_system_fails_at_first(other_system: OtherSystem) -> None:
    page = run_blocks("replay-safe", "publish(")
    other_system.plan["a1"] = [503, 500]  # the event is refused twice
    defer_events(page, (1, "a1"), (2, "b1"), (1, "a2"), (2, "b2"), (1, "a3"))
    run_jobs()
    assert (other_system.accepted_events(1), other_system.accepted_events(2)) == ([], ["b1", "b2"]), (
        "events of the other order do not wait"
    )
    jobs_run = run_jobs(include_scheduled=True)
    assert {job.status for job in jobs_run} == {"completed"}
    assert other_system.accepted_events(1) == ["a1", "a2", "a3"]
    assert [event for order, event, _ in other_system.received if order == 1] == ["a1", "a1", "a1", "a2", "a3"]


def test_an_event_whose_answer_is_lost_is_sent_again_with_its_id(other_system: OtherSystem) -> None:
    page = run_blocks("replay-safe", "publish(")
    other_system.plan["a1"] = [None]  # the first response is lost
    defer_events(page, (1, "a1"), (1, "a2"))
    run_jobs(include_scheduled=True)
    assert other_system.accepted_events(1) == ["a1", "a1", "a2"]
    assert other_system.keys["a1"] == {"id of a1"}


def test_a_rolled_back_order_publishes_no_event(other_system: OtherSystem) -> None:
    page = run_blocks("replay-safe", "publish(", "ship")

    class Order:
        pk = 7
        shipped = False

        def save(self) -> None:
            """Do nothing: the test does not need the order's row."""

    with transaction.atomic():
        page.ship(Order())
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    page.ship(Order())
    run_jobs()
    assert other_system.received == [(7, "shipped", 204)]


def test_an_event_that_has_failed_for_good_holds_up_its_order_until_it_is_discarded(other_system: OtherSystem) -> None:
    page = run_blocks("replay-safe", "publish(")
    other_system.plan["a1"] = [400]  # the task does not retry after this status
    page.publish.using(max_attempts=1).defer(order_id=1, event="a1", event_id="id of a1")
    defer_events(page, (1, "a2"))
    run_jobs()
    assert (other_system.accepted_events(1), Job.objects.get(status="blocked").kwargs["event"]) == ([], "a2")
    Job.objects.get(status="failed").discard()
    run_jobs()
    assert other_system.accepted_events(1) == ["a2"]
