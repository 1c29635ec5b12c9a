"""The metrics of limits and sequences. Every count ends at a bound, and no key is a label."""

from collections.abc import Iterator

from ...console.metrics import catalogue
from ...console.metrics.catalogue import bounded
from ...queue.store import Store
from ...values.exposition import Family

MOST_KEYS = 500
"""Keys that are counted."""

MOST_BLOCKED = 2_000
"""Blocked jobs that are counted, those first that were enqueued first; of more, the planner's estimate is shown."""

MOST_HALTING = 1_000
"""Failed jobs of sequences that are looked at."""


def blocked(store: Store) -> Iterator[Family]:
    busiest = sorted(store.estimated_blocked(most=MOST_BLOCKED).items(), key=lambda item: (-item[1], item[0]))
    family = Family(catalogue.BLOCKED)
    for labels, number in bounded(((name,), number) for name, number in busiest):
        before = family.values.get(labels, 0)
        family.values[labels] = number + (before if isinstance(before, int) else 0)
    yield family


def keys(store: Store) -> Iterator[Family]:
    halted = store.halted_keys(limit=MOST_HALTING)
    yield Family(catalogue.HALTED, {(): len({each.key for each in halted})})
    yield Family(catalogue.LONGEST_HALT, {(): max((each.seconds for each in halted), default=0.0)})
    yield Family(catalogue.WAITING_KEYS, {(): len(store.waiting_keys(limit=MOST_KEYS))})
