"""The state of carriers: the jobs that they hold, and whether their relays and brokers can be reached."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue import job
from django_skipqueue.console.durations import clock_time
from django_skipqueue.contrib.celery.carrier import carrier_id, carrier_of
from django_skipqueue.contrib.celery.console import CarrierNow, carriers_now, overdue_jobs
from django_skipqueue.contrib.celery.rows import BROKERS_TIMEOUT
from django_skipqueue.contrib.celery.settings import carrier_for
from django_skipqueue.contrib.celery.settings import carriers as carriers_by_name
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.queue.store import Store

from ...app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ...app.rows import make_job, make_worker

pytestmark = pytest.mark.django_db

STORE = Store("default")
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _celery_carries_pdf(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def celery_state() -> CarrierNow:
    (state,) = carriers_now(STORE)
    return state


def test_the_state_of_a_carrier_counts_its_jobs_relays_and_refusals() -> None:
    make_carrier(refused=7, heartbeat=-timedelta(seconds=5))
    make_relay()
    make_relay(heartbeat=-10 * MINUTE)
    make_relay(relay_of="other")
    oldest_job = make_carried(locked_at=-5 * MINUTE)
    make_carried()
    make_job("running", locked_by=make_worker().pk, locked_at=-60 * MINUTE)  # not a job of the carrier
    state = celery_state()
    assert (state.name, state.queues, state.window, state.held) == ("celery", ("pdf",), 2_000, 2)
    assert state.oldest == oldest_job.locked_at
    assert 300 <= (state.oldest_seconds or 0) < 330
    assert (state.relays, state.refused) == (1, 7)
    assert 5 <= state.heartbeat_age < 35


def test_an_idle_carrier_has_no_oldest_job() -> None:
    make_carrier()
    assert (celery_state().held, celery_state().oldest, celery_state().oldest_seconds) == (0, None, None)


@pytest.mark.parametrize(
    ("relays", "reached", "is_reachable"),
    [(0, timedelta(0), None), (1, timedelta(0), True), (1, -2 * MINUTE, False), (1, None, False)],
)
def test_the_broker_is_reachable_or_not_only_while_a_relay_is_alive(
    relays: int, reached: timedelta | None, is_reachable: bool | None
) -> None:
    make_carrier(reached_at=reached)
    for _ in range(relays):
        make_relay()
    assert celery_state().is_reachable is is_reachable


def test_a_carrier_without_a_setting_is_listed_while_it_holds_jobs(settings: Any) -> None:
    make_carrier()
    carried_job = make_carried()
    settings.SKIPQUEUE = {}
    assert celery_state().held == 1
    carried_job.delete()
    assert carriers_now(STORE) == []


def test_the_states_of_all_carriers_need_one_query() -> None:
    make_carrier()
    make_carrier(id=carrier_id("other"), name="other")
    with CaptureQueriesContext(connection) as queries:
        carriers_now(STORE)
    assert len(queries) == 1


def test_without_a_carrier_no_job_is_read() -> None:
    make_job("running")
    with CaptureQueriesContext(connection) as queries:
        assert carriers_now(STORE) == []
    statement = queries[0]["sql"].replace("%", "%%")
    ((plan,),) = STORE.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    scans = [node for node in plan_nodes(plan[0]["Plan"]) if node.get("Relation Name") == "skipqueue_job"]
    assert scans
    assert all(node["Actual Loops"] == 0 for node in scans)


def plan_nodes(plan: Any) -> list[Any]:
    return [plan, *(node for child in plan.get("Plans", []) for node in plan_nodes(child))]


def test_carrier_for_finds_the_carrier_of_a_queue() -> None:
    carrier = carrier_for("pdf")
    assert carrier is not None
    assert carrier.name == "celery"
    assert carrier_for("mail") is None


@pytest.mark.parametrize("name", ["celery", "a.b-c"])
def test_only_the_id_of_a_carrier_names_a_carrier(name: str) -> None:
    assert carrier_of(carrier_id(name)) == name
    for holder in ("", name, f"{name}:0123456789ab", "w", make_worker(name=name).pk):
        assert carrier_of(holder) == ""


def timed() -> None:
    """A function that a test registers as a task."""


def test_a_job_is_overdue_after_its_wait_and_three_times_its_time_limit(registry: Registry) -> None:
    wait = 600  # the default of the carrier's option WAIT, in seconds
    limits = {job(timeout=100)(timed).name: wait + 3 * 100, "unknown": wait + 3 * BROKERS_TIMEOUT}
    overdue_ids = set()
    for task, limit in limits.items():
        make_carried(task=task, locked_at=-timedelta(seconds=limit - 30))
        overdue_ids.add(make_carried(task=task, locked_at=-timedelta(seconds=limit + 1)).pk)
    make_carried(task="unknown", timeout=9_000.0, locked_at=-timedelta(seconds=limits["unknown"] + 1))
    make_job("running", locked_by="w", locked_at=-timedelta(days=1))
    rows = list(overdue_jobs(STORE, carriers_by_name()["celery"]))
    assert {job_id for job_id, *_ in rows} == overdue_ids
    assert rows[0][1] == "unknown", "the longest overdue job comes first"


def test_clock_time_has_a_date_only_for_another_day() -> None:
    carried_job = make_carried(locked_at=-timedelta(seconds=1))
    assert carried_job.locked_at is not None
    assert len(clock_time(carried_job.locked_at, carried_job.locked_at)) == len("14:02:11")
    assert len(clock_time(carried_job.locked_at - timedelta(days=1), carried_job.locked_at)) == len(
        "2026-03-01 14:02:11"
    )
