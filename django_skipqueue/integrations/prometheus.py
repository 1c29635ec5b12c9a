"""A collector for projects that already serve metrics with `prometheus-client`: `REGISTRY.register(…)`.

Invariant: to register it sends no query, so that it can be done in `ready()` or in `urls.py`.
"""

from collections.abc import Iterator
from typing import Any

from ..console.metrics.scrape import metrics, scrape_all
from ..values.exposition import Family, Histogram, cumulative

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        f'{__name__} needs the library prometheus-client: pip install "django-skipqueue[prometheus]"'
    ) from error


FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
"""The library's class for each kind of metric."""


class SkipqueueCollector(Collector):
    """All metrics of the queue, queried at each scrape: `REGISTRY.register(SkipqueueCollector())`."""

    def describe(self) -> Iterator[Metric]:
        """The metrics without their series."""
        return (_converted(Family(metric)) for metric in metrics())

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        return map(_converted, scrape_all())


def _converted(family: Family) -> Any:
    """The family in the classes of the library."""
    name, kind, text, labels = family.metric
    converted = FAMILIES[kind](name, text, labels=labels)
    for values, value in family.values.items():
        if isinstance(value, Histogram):
            converted.add_metric(values, list(cumulative(value.counts)), value.total)
        else:
            converted.add_metric(values, value)
    return converted
