"""Collect all metrics, one `Scraped` after the other. If one fails, the rest is still served.

No query takes longer than `PART_SECONDS`, all queries together take at most `SCRAPE_SECONDS`, and each query reads a
limited number of rows.

Several databases are read at the same time, and their metrics get the label `database`. A database that does not answer
is left out.
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
"""The statement timeout of one `Scraped`, and its shortest timeout if the earlier `Scraped` were slow."""

SCRAPE_SECONDS = 5.0
"""The longest time for all metrics in seconds. Prometheus waits for ten seconds."""

DATABASE_UP = Metric(
    "skipqueue_database_up", "gauge", "1 if the database has answered; only with several databases.", ("database",)
)
ERROR = Metric("skipqueue_scrape_error", "gauge", "1 if this part of the metrics is missing.", ("part",))
SCRAPE_TIME = Metric("skipqueue_scrape_seconds", "gauge", "Seconds that the queries of this scrape took.")


def scraped() -> tuple[Scraped, ...]:
    """Return the metrics of the core and of all parts."""
    return (*SCRAPED, *(metrics for console in consoles() for metrics in console.metrics))


def metrics() -> tuple[Metric, ...]:
    """Return the metrics about the scrape itself, and the metrics of the core and of all parts."""
    return (DATABASE_UP, ERROR, SCRAPE_TIME, *(metric for part in scraped() for metric in part.metrics))


def scrape(store: Store) -> Iterator[Family]:
    """Read all metrics now. Raises no database error, but sets `skipqueue_scrape_error` for missing metrics."""
    started_at, parts = time.perf_counter(), scraped()
    budget = TimeBudget(SCRAPE_SECONDS, steps=len(parts), most=PART_SECONDS, least=LEAST_PART_SECONDS)
    errors = Family(ERROR)
    is_lost = False
    for part in parts:
        families = None if is_lost else _collected(part, store, budget.next_seconds())
        errors.values[part.name,] = int(families is None)
        if families is None and not is_lost:
            # If the host does not answer, skip the remaining parts, because each would only time out.
            is_lost = store.connection.connection is None or not store.connection.is_usable()
        yield from families or ()
    yield errors
    yield Family(SCRAPE_TIME, {(): time.perf_counter() - started_at})


def _collected(part: Scraped, store: Store, seconds: float) -> list[Family] | None:
    """Return the metrics of one `Scraped`; `None` after a database error."""
    try:
        with short_transaction(store, seconds):
            return list(part.collect(store))
    except Error as error:
        liveness_logs.scrape_failed(part.name, error, database=store.alias if settings.serves_several else None)
        return None


SCRAPE_CONNECT_SECONDS = 2.0
"""The longest time in seconds to connect to each of several databases."""

SCRAPE_SPARE_SECONDS = 1.0
"""Seconds that the slowest database has for its last statements, after `SCRAPE_SECONDS`."""

DATABASE_LABEL = "database"


def scrape_all() -> Iterator[Family]:
    """Read all metrics of each served database now. Raises no database error."""
    if not settings.serves_several:
        yield from scrape(Store.default())
        return
    aliases = settings.served_databases
    families_by_alias = read_at_once(
        aliases,
        lambda store: list(scrape(store)),
        connect_seconds=SCRAPE_CONNECT_SECONDS,
        seconds=SCRAPE_CONNECT_SECONDS + SCRAPE_SECONDS + SCRAPE_SPARE_SECONDS,
    )
    yield Family(DATABASE_UP, {(alias,): int(families_by_alias[alias] is not None) for alias in aliases})
    merged: dict[str, Family] = {}  # Prometheus wants all series of a metric in one place
    for alias, families in families_by_alias.items():
        for family in families or ():
            merged_family = merged.setdefault(family.metric.name, Family(with_database(family.metric)))
            merged_family.values.update({(alias, *labels): value for labels, value in family.values.items()})
    yield from merged.values()


def with_database(metric: Metric) -> Metric:
    return metric._replace(labels=(DATABASE_LABEL, *metric.labels))
