"""The metrics of what has happened to jobs: counters and histograms, from the roll-ups since the beginning.

They never start anew: they are rows, which outlive every process. A row with no change for 90 days is deleted.
"""

import json
from collections.abc import Iterator

from ...queue import claim_costs as costs_of_claims
from ...queue.store import Store
from ...values.counting import added, empty
from ...values.exposition import Family, Histogram, Value
from . import catalogue, sql
from .catalogue import MOST, bounded

MOST_READ = 2_000
"""Pairs of a queue and a task that are read, the busiest first."""

OUTCOMES = ("completed", "retried", "snoozed", "failed", "discarded")


def jobs(store: Store) -> Iterator[Family]:
    """Counters and histograms for each queue and task. Of more than `MOST` pairs, the busiest have their own."""
    enqueued, recovered, lost = (Family(metric) for metric in (catalogue.ENQUEUED, catalogue.RECOVERED, catalogue.LOST))
    attempts, waited, ran = (Family(metric) for metric in (catalogue.ATTEMPTS, catalogue.WAITED, catalogue.RAN))
    rows = store.rows(sql.ROLLED_UP, {"limit": MOST_READ})
    for labels, row in bounded(((queue_name, task), row) for queue_name, task, *row in rows):
        counts, (waits, waited_seconds, runs, ran_seconds) = row[:-4], row[-4:]
        for family, number in zip((enqueued, recovered, lost), counts, strict=False):
            _add(family, labels, number)
        for outcome, number in zip(OUTCOMES, counts[3:], strict=True):
            _add(attempts, (*labels, outcome), number)
        _add(waited, labels, _histogram(waits, waited_seconds))
        _add(ran, labels, _histogram(runs, ran_seconds))
    yield from (enqueued, attempts, recovered, lost, waited, ran)


def claims(store: Store) -> Iterator[Family]:
    times, seconds = next(iter(store.rows(sql.CLAIMS)), (None, 0.0))
    yield Family(catalogue.CLAIMS, {(): _histogram(times, seconds)})


def claim_costs(store: Store) -> Iterator[Family]:
    """What a claim reads, of the deepest queues, at the last sample of a supervisor."""
    costs = costs_of_claims.claim_costs(store, limit=MOST)
    yield Family(catalogue.CLAIM_PAGES, {(cost.queue_name,): cost.pages for cost in costs})
    yield Family(catalogue.CLAIM_ENTRIES, {(cost.queue_name,): cost.rows for cost in costs})


def _histogram(counts: str | None, total: float) -> Histogram:
    """From the array as JSON, which Python reads ten times as fast as psycopg reads an array."""
    return Histogram(json.loads(counts) if counts else empty(), total)


def _add(family: Family, labels: tuple[str, ...], value: Value) -> None:
    """Add to the value of the series: several rows have the label `OTHER`."""
    before = family.values.get(labels)
    if before is None:
        family.values[labels] = value
    elif isinstance(before, Histogram) and isinstance(value, Histogram):
        family.values[labels] = Histogram(added(before.counts, value.counts), before.total + value.total)
    elif not isinstance(before, Histogram) and not isinstance(value, Histogram):
        family.values[labels] = before + value
