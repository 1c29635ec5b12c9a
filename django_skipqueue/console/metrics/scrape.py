"""Collects all metrics, one `Scraped` after the other. If one fails, the others are served.

Invariant: no query takes longer than `PART_SECONDS`, all queries together take `SCRAPE_SECONDS` at most, and each query
has a maximum of rows.

Several databases are read at once, each with the label `database`. A database that does not answer is left out.
"""

import time
from collections.abc import Iterator

from django.db import Error

from ...conf import settings
from ...events import liveness_logs
from ...queue.session import short_transaction
from ...queue.store import Store
from ...values.exposition import Family, Metric
from ..at_once import read_at_once
from ..counts import TimeBudget
from ..parts import consoles
from .catalogue import SCRAPED, Scraped

PART_SECONDS, LEAST_PART_SECONDS = 1.0, 0.1
"""The statement timeout of one `Scraped`, and the least timeout that it has when others were slow."""

SCRAPE_SECONDS = 5.0
"""Seconds for all metrics. Prometheus waits for ten."""

DATABASE_UP = Metric(
    "skipqueue_database_up", "gauge", "1 if the database has answered the scrape; with several only.", ("database",)
)
ERROR = Metric("skipqueue_scrape_error", "gauge", "1 if this part of the metrics is missing.", ("part",))
SCRAPE_TIME = Metric("skipqueue_scrape_seconds", "gauge", "Seconds that the queries of this scrape took.")


def scraped() -> tuple[Scraped, ...]:
    """What the core counts, and what the parts count."""
    return (*SCRAPED, *(each for console in consoles() for each in console.metrics))


def metrics() -> tuple[Metric, ...]:
    """Every metric of the queue: of the scrape itself, of the core, and of the parts."""
    return (DATABASE_UP, ERROR, SCRAPE_TIME, *(metric for each in scraped() for metric in each.metrics))


def scrape(store: Store) -> Iterator[Family]:
    """All metrics as they are now. Raises no database error: `skipqueue_scrape_error` says which part is missing."""
    began, parts = time.perf_counter(), scraped()
    budget = TimeBudget(SCRAPE_SECONDS, parts=len(parts), most=PART_SECONDS, least=LEAST_PART_SECONDS)
    errors = Family(ERROR)
    is_lost = False
    for part in parts:
        found = None if is_lost else _collected(part, store, budget.share())
        errors.values[part.name,] = int(found is None)
        if found is None and not is_lost:
            # a host that does not answer would cost a timeout for each part
            is_lost = store.connection.connection is None or not store.connection.is_usable()
        yield from found or ()
    yield errors
    yield Family(SCRAPE_TIME, {(): time.perf_counter() - began})


def _collected(part: Scraped, store: Store, seconds: float) -> list[Family] | None:
    """The metrics of one `Scraped`; `None` after a database error."""
    try:
        with short_transaction(store, seconds):
            return list(part.collect(store))
    except Error as error:
        liveness_logs.scrape_failed(part.name, error, database=store.alias if settings.serves_several else None)
        return None


SCRAPE_CONNECT_SECONDS = 2.0
"""Seconds to connect to each of several databases."""

SCRAPE_SPARE_SECONDS = 1.0
"""Seconds for the last statements of the slowest database, after `SCRAPE_SECONDS`."""

DATABASE_LABEL = "database"


def scrape_all() -> Iterator[Family]:
    """All metrics as they are now, of each database that is served. Raises no database error."""
    if not settings.serves_several:
        yield from scrape(Store.default())
        return
    aliases = settings.served_databases
    found = read_at_once(
        aliases,
        lambda store: list(scrape(store)),
        connect_seconds=SCRAPE_CONNECT_SECONDS,
        seconds=SCRAPE_CONNECT_SECONDS + SCRAPE_SECONDS + SCRAPE_SPARE_SECONDS,
    )
    yield Family(DATABASE_UP, {(alias,): int(found[alias] is not None) for alias in aliases})
    together: dict[str, Family] = {}  # Prometheus wants all series of a metric in one place
    for alias, families in found.items():
        for family in families or ():
            all_of_it = together.setdefault(family.metric.name, Family(with_database(family.metric)))
            all_of_it.values.update({(alias, *labels): value for labels, value in family.values.items()})
    yield from together.values()


def with_database(metric: Metric) -> Metric:
    return metric._replace(labels=(DATABASE_LABEL, *metric.labels))
