"""Write metrics in Prometheus' text format, without Prometheus' own library."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from .counting import BOUNDS, all_buckets

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LE = (*map(str, BOUNDS), "+Inf")
"""The value of the label `le` for each bucket of a histogram."""


class Metric(NamedTuple):
    name: str
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    """A one-sentence description of the metric."""
    labels: tuple[str, ...] = ()


class Histogram(NamedTuple):
    counts: Sequence[int]
    """The number of durations in each bucket, as `values.counting.histogram` returns it."""
    total: float
    """The sum of all durations in seconds."""


Value = float | Histogram


@dataclass(frozen=True)
class Family:
    """A metric and its current values, by the values of its labels."""

    metric: Metric
    values: dict[tuple[str, ...], Value] = field(default_factory=dict)


def exposition(families: Iterable[Family]) -> str:
    return "".join(line for family in families for line in _lines(family))


def cumulative(counts: Sequence[int]) -> Iterator[tuple[str, int]]:
    """For each bucket, return its label and the number of durations up to its upper bound."""
    return zip(LE, accumulate(all_buckets(counts)), strict=True)


def _lines(family: Family) -> Iterator[str]:
    name = family.metric.name
    yield f"# HELP {name} {family.metric.text}\n"
    yield f"# TYPE {name} {family.metric.kind}\n"
    for values, value in family.values.items():
        labels = ",".join(
            f'{label}="{_escaped(text)}"' for label, text in zip(family.metric.labels, values, strict=True)
        )
        braced_labels = f"{{{labels}}}" if labels else ""
        if isinstance(value, Histogram):
            label_prefix = f"{labels}," if labels else ""
            for bound, count in cumulative(value.counts):
                yield f'{name}_bucket{{{label_prefix}le="{bound}"}} {count}\n'
            yield f"{name}_sum{braced_labels} {_number(value.total)}\n"
            yield f"{name}_count{braced_labels} {sum(value.counts)}\n"
        else:
            yield f"{name}{braced_labels} {_number(value)}\n"


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
