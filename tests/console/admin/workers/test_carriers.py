"""Carriers, which are systems such as Celery that run jobs, and their relays in the list of workers."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_skipqueue.models import Worker, WorkerRequest

from ....app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ....app.rows import make_job, make_worker
from ..conftest import WORKERS

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _celery_carries_pdf(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def row_of(client: Client, name: str) -> str:
    rows = re.findall(r"<tr>.*?</tr>", client.get(WORKERS).text, re.DOTALL)
    (row,) = [row for row in rows if re.search(f'class="skipqueue-name">(<a [^>]*>)?{name}</', row)]
    return str(row)


def test_the_row_of_a_carrier_counts_its_jobs_and_shows_the_state_of_its_broker(operator: Client) -> None:
    make_carrier(refused=1_234)
    make_relay()
    make_carried(locked_at=-HOUR)
    make_carried()
    row = row_of(operator, "celery")
    for expected in (
        "carrier · 1 relay",
        "2/2,000 jobs",
        "the oldest since ",
        "broker reachable",
        "1,234 jobs refused",
    ):
        assert expected in row
    assert "busy" not in row
    assert "jobs done" not in row
    assert "pid 0" not in row


@pytest.mark.parametrize(("relays", "expected_text"), [(0, "no relay is alive"), (1, "broker not reachable")])
def test_the_row_of_a_carrier_without_a_relay_or_a_broker_says_so(
    operator: Client, relays: int, expected_text: str
) -> None:
    make_carrier(reached_at=-HOUR)
    for _ in range(relays):
        make_relay()
    row = row_of(operator, "celery")
    assert expected_text in row
    assert "nothing" in row


def test_the_row_of_a_relay_names_its_carrier_and_counts_jobs_on_their_way(operator: Client) -> None:
    relay = make_relay()
    make_carried(locked_by=relay.pk)
    row = row_of(operator, "relay/1")
    assert "relay of celery · h · pid 1" in row
    assert "1 on their way" in row
    assert "busy" not in row


def test_a_carrier_cannot_be_restarted_or_stopped(operator: Client) -> None:
    carrier, _ = make_carrier(), make_relay()
    assert 'class="button' not in row_of(operator, "celery")
    assert 'class="button' in row_of(operator, "relay/1")
    for name in ("restart", "stop"):
        address = reverse(f"admin:django_skipqueue_worker_{name}", query={"worker": carrier.pk})
        assert "This worker has ended." in operator.post(address, follow=True).text
    assert not carrier.restart()
    assert not carrier.stop()
    assert not WorkerRequest.objects.exists()


def test_the_page_of_a_carrier_shows_its_jobs_and_refusals(operator: Client) -> None:
    carrier = make_carrier(refused=1_234)
    make_carried()
    text = operator.get(reverse("admin:django_skipqueue_worker_change", args=[carrier.pk])).text
    assert "1/2,000 jobs" in text
    assert "1,234 jobs refused" in text
    assert "worker/restart/" not in text


def test_a_carrier_without_a_setting_is_shown_only_while_it_has_jobs(operator: Client, settings: Any) -> None:
    make_carrier()
    settings.SKIPQUEUE = {}
    assert ">celery<" not in operator.get(WORKERS).text
    make_carried()
    assert ">celery<" in operator.get(WORKERS).text


def test_carriers_need_one_more_query(operator: Client) -> None:
    query_counts = []
    for make in (make_worker, make_carrier):
        make()
        operator.get(WORKERS)  # fills the cache of the verdict
        with CaptureQueriesContext(connection) as queries:
            operator.get(WORKERS)
        query_counts.append(len(queries))
    assert query_counts[1] == query_counts[0] + 1


def test_a_carrier_is_not_among_the_live_workers() -> None:
    make_carrier()
    relay = make_relay()
    assert list(Worker.objects.live()) == [relay]


def test_the_rows_of_carriers_escape_html(operator: Client, settings: Any) -> None:
    hostile = "<script>alert(1)</script>"
    settings.SKIPQUEUE = CARRIERS
    make_carrier(name=hostile, id="x")
    make_carried(locked_by="x")
    make_relay(relay_of=hostile)
    assert "<script>alert" not in operator.get(WORKERS).text


def test_the_jobs_of_a_worker_are_listed_beside_many_carried_jobs(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.queue.observe.MOST_RUNNING_READ", 1)
    make_carrier()
    make_carried(locked_at=-HOUR)
    make_job("running", locked_by=make_worker(name="w/1").pk, task="a.jobs.young")
    assert "young" in row_of(operator, "w/1")
