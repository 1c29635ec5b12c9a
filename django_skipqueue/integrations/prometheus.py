"""Adds the queue's metrics to the metrics that a project already serves with `prometheus-client`.

Registering the collector sends no query, so a project can do it in `ready()` or in `urls.py`.
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
    """Queries all metrics of the queue at each scrape. Use it as `REGISTRY.register(SkipqueueCollector())`."""

    def describe(self) -> Iterator[Metric]:
        """Return the name, help text and labels of each metric, without values."""
        return (_converted(Family(metric)) for metric in metrics())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics with their present values."""
        return map(_converted, scrape_all())


def _converted(family: Family) -> Any:
    """Convert a metric and its values to the library's class."""
    name, kind, text, labels = family.metric
    converted = FAMILIES[kind](name, text, labels=labels)
    for label_values, value in family.values.items():
        if isinstance(value, Histogram):
            converted.add_metric(label_values, list(cumulative(value.counts)), value.total)
        else:
            converted.add_metric(label_values, value)
    return converted
