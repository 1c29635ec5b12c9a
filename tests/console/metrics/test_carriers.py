"""The metrics of carriers; relays do not count as workers."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.metrics import catalogue
from django_skipqueue.contrib.celery import console as carriers
from django_skipqueue.queue.store import Store

from ...app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ...app.rows import make_worker

pytestmark = pytest.mark.django_db

STORE = Store("default")
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def carriers_in_the_settings(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS


def carrier_metrics() -> dict[str, float]:
    value_by_metric = {}
    for family in carriers.metrics.collect(STORE):
        for labels, value in family.values.items():
            assert labels == ("celery",)
            assert isinstance(value, int | float)
            value_by_metric[family.metric.name.removeprefix("skipqueue_")] = value
    return value_by_metric


def test_a_carrier_has_a_series_of_each_metric() -> None:
    make_carrier(refused=3)
    make_relay()
    make_carried(locked_at=-HOUR)
    make_carried()
    value_by_metric = carrier_metrics()
    assert 3600 <= value_by_metric.pop("carrier_oldest_seconds") < 3630
    assert 0 <= value_by_metric.pop("carrier_heartbeat_age_seconds") < 30
    assert value_by_metric == {
        "carried_jobs": 2,
        "carrier_window": 2_000,
        "carrier_relays": 1,
        "carrier_reachable": 1,
        "carrier_refused_total": 3,
    }


def test_without_a_relay_the_broker_of_a_carrier_counts_as_unreachable() -> None:
    make_carrier(heartbeat=-HOUR)
    value_by_metric = carrier_metrics()
    assert (
        value_by_metric["carrier_relays"],
        value_by_metric["carrier_reachable"],
        value_by_metric["carrier_oldest_seconds"],
    ) == (0, 0, 0)
    assert value_by_metric["carrier_heartbeat_age_seconds"] >= 3600


def test_without_a_carrier_there_is_no_series() -> None:
    assert carrier_metrics() == {}


def test_neither_carriers_nor_relays_are_workers() -> None:
    make_carrier()
    make_carrier(id="old", heartbeat=-HOUR)
    make_relay()
    make_worker()
    (family,) = catalogue.workers.collect(STORE)
    assert family.values == {("live",): 1, ("late",): 0, ("stale",): 0}
