"""The metrics of carriers, by one query. Without a carrier there is no series."""

from collections.abc import Callable, Iterator

from ...console.metrics import catalogue
from ...queue.store import Store
from ...values.exposition import Family, Metric
from .states import CarrierNow, carriers_now

METRICS: tuple[tuple[Metric, Callable[[CarrierNow], float]], ...] = (
    (catalogue.CARRIED, lambda carrier: carrier.held),
    (catalogue.CARRIER_WINDOW, lambda carrier: carrier.window),
    (catalogue.CARRIER_OLDEST, lambda carrier: max(carrier.oldest_seconds or 0.0, 0.0)),
    (catalogue.CARRIER_RELAYS, lambda carrier: carrier.relays),
    (catalogue.CARRIER_REACHABLE, lambda carrier: int(carrier.is_reachable is True)),
    (catalogue.CARRIER_REFUSED, lambda carrier: carrier.refused),
    (catalogue.CARRIER_AGE, lambda carrier: max(carrier.heartbeat_age, 0.0)),
)
"""Each metric, and its value for one carrier."""


def carriers(store: Store) -> Iterator[Family]:
    found = carriers_now(store)
    for metric, value in METRICS:
        yield Family(metric, {(carrier.name,): value(carrier) for carrier in found})
