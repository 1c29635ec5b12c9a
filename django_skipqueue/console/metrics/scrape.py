"""Collect all metrics, in parts. A part that fails is left out, and the others are served.

Invariant: no query takes longer than `PART_SECONDS`, all of them together take `SCRAPE_SECONDS` at most, and none reads
more rows than a bound.
"""

import time
from collections.abc import Iterator

from django.db import Error

from ...conf import settings
from ...events import liveness_logs
from ...queue.session import short_transaction
from ...queue.store import Store
from ...values.exposition import Family, Metric
from ..counts import TimeBudget
from ..parts import consoles
from . import catalogue, queues, tables
from .catalogue import Scraped

PART_SECONDS, LEAST_SECONDS = 1.0, 0.1
"""The statement timeout of a part, which is a transaction of its own, and what is left of it when others were slow."""

SCRAPE_SECONDS = 5.0
"""Seconds for all parts. Prometheus waits for ten."""


SCRAPED = (
    Scraped("queues", queues.queues),
    Scraped("blocked", queues.blocked),
    Scraped("paused", queues.paused),
    Scraped("workers", queues.workers),
    Scraped("prune_lag", tables.prune_lag),
    Scraped("vacuums", tables.vacuums),
    Scraped("sizes", tables.sizes),
    Scraped("locks", tables.locks),
    Scraped("load", tables.tables),
    Scraped("statements", tables.statements),
)


def scraped() -> tuple[Scraped, ...]:
    """What the core counts, and what the parts count."""
    return (*SCRAPED, *(each for console in consoles() for each in console.metrics))


def metrics() -> tuple[Metric, ...]:
    """Every metric of the queue: those of the core, and those of the parts."""
    return (*catalogue.METRICS, *(metric for each in scraped() for metric in each.metrics))


def scrape(store: Store) -> Iterator[Family]:
    """All metrics as they are now. Raises no database error: `skipqueue_scrape_error` says which part is missing."""
    began, parts = time.perf_counter(), scraped()
    budget = TimeBudget(SCRAPE_SECONDS, parts=len(parts), most=PART_SECONDS, least=LEAST_SECONDS)
    errors = Family(catalogue.ERROR)
    is_lost = False
    for part in parts:
        found = None if is_lost else _collected(part, store, budget.share())
        errors.values[part.name,] = int(found is None)
        is_lost = is_lost or (found is None and not _is_usable(store))
        yield from found or ()
    yield errors
    yield Family(catalogue.SCRAPE_TIME, {(): time.perf_counter() - began})


def _collected(part: Scraped, store: Store, seconds: float) -> list[Family] | None:
    """The metrics of one part; `None` after a database error."""
    try:
        with short_transaction(store, seconds):
            return list(part.collect(store))
    except Error as error:
        liveness_logs.scrape_failed(part.name, error, database=store.alias if settings.serves_several else None)
        return None


def _is_usable(store: Store) -> bool:
    """Whether the connection is open still. A host that does not answer would cost a timeout for each part."""
    return store.connection.connection is not None and store.connection.is_usable()
