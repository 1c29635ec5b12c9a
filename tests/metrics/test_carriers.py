"""The metrics of carriers; relays do not count as workers."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.metrics import catalogue
from django_skipqueue.contrib.celery import console as carriers
from django_skipqueue.queue.store import Store

from ..app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ..app.rows import make_worker

pytestmark = pytest.mark.django_db

STORE = Store("default")
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def celery(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def scraped() -> dict[str, float]:
    found = {}
    for family in carriers.metrics.collect(STORE):
        for labels, value in family.values.items():
            assert labels == ("celery",)
            assert isinstance(value, int | float)
            found[family.metric.name.removeprefix("skipqueue_")] = value
    return found


def test_a_carrier_has_a_series_of_each_metric() -> None:
    make_carrier(refused=3)
    make_relay()
    make_carried(locked_at=-HOUR)
    make_carried()
    found = scraped()
    assert 3600 <= found.pop("carrier_oldest_seconds") < 3630
    assert 0 <= found.pop("carrier_heartbeat_age_seconds") < 30
    assert found == {
        "carried_jobs": 2,
        "carrier_window": 2_000,
        "carrier_relays": 1,
        "carrier_reachable": 1,
        "carrier_refused_total": 3,
    }


def test_without_a_relay_its_broker_counts_as_not_reached() -> None:
    make_carrier(heartbeat=-HOUR)
    found = scraped()
    assert (found["carrier_relays"], found["carrier_reachable"], found["carrier_oldest_seconds"]) == (0, 0, 0)
    assert found["carrier_heartbeat_age_seconds"] >= 3600


def test_without_a_carrier_there_is_no_series() -> None:
    assert scraped() == {}


def test_neither_carriers_nor_relays_are_workers() -> None:
    make_carrier()
    make_carrier(id="old", heartbeat=-HOUR)
    make_relay()
    make_worker()
    (family,) = catalogue.workers.collect(STORE)
    assert family.values == {("live",): 1, ("late",): 0, ("stale",): 0}
