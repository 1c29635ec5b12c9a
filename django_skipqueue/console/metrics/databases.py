"""The metrics of all databases that hold queues, read at once, each with the label `database`.

Invariant: one that is down, or does not answer, keeps no other out of the scrape. With one database there is no label.
"""

from collections.abc import Iterator, Mapping, Sequence

from ...conf import settings
from ...queue.store import Store
from ...values.exposition import Family, Metric
from ..at_once import read_at_once
from . import catalogue
from .scrape import SCRAPE_SECONDS, scrape

CONNECT_SECONDS = 2.0
"""To connect to each of several databases. The scrape of each takes `SCRAPE_SECONDS` and little more after that."""

SPARE_SECONDS = 1.0
"""For the last statements of the slowest. Prometheus waits for ten seconds in all."""

LABEL = "database"


def scrape_all() -> Iterator[Family]:
    """All metrics as they are now, of each database that is served. Raises no database error."""
    if not settings.serves_several:
        yield from scrape(Store.default())
        return
    aliases = settings.served_databases
    found = read_at_once(
        aliases,
        lambda store: list(scrape(store)),
        connect_seconds=CONNECT_SECONDS,
        seconds=CONNECT_SECONDS + SCRAPE_SECONDS + SPARE_SECONDS,
    )
    yield Family(catalogue.DATABASE_UP, {(alias,): int(found[alias] is not None) for alias in aliases})
    yield from _together({alias: families for alias, families in found.items() if families is not None})


def with_database(metric: Metric) -> Metric:
    return metric._replace(labels=(LABEL, *metric.labels))


def _together(found: Mapping[str, Sequence[Family]]) -> Iterator[Family]:
    """One family for each metric: Prometheus wants all series of a metric in one place."""
    together: dict[str, Family] = {}
    for alias, families in found.items():
        for family in families:
            all_of_it = together.setdefault(family.metric.name, Family(with_database(family.metric)))
            all_of_it.values.update({(alias, *labels): value for labels, value in family.values.items()})
    yield from together.values()
