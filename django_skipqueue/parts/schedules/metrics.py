"""The metrics of schedules, from their rows."""

from collections.abc import Iterator

from ...console.metrics import catalogue
from ...console.metrics.catalogue import MOST
from ...queue.store import Store
from ...values.exposition import Family
from .operate import schedule_times


def schedules(store: Store) -> Iterator[Family]:
    """The times of the first `catalogue.MOST` schedules, by name."""
    found = schedule_times(store, limit=MOST)
    yield Family(catalogue.LAST_RUN, {(each.name,): each.last_run for each in found if each.last_run is not None})
    yield Family(catalogue.NEXT_RUN, {(each.name,): each.next_run for each in found if each.next_run is not None})
    yield Family(catalogue.LATE, {(each.name,): each.late for each in found})
