"""The charts of the dashboard: throughput, waiting times, run times, depths. A further one is a line in `charts`.

The depths are those of the deepest queues over time, and of all others together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....values import counting
from ...counts import grouped
from ...durations import roughly, span
from .. import charts as scale
from ..charts import NOTHING, Chart, Series, TimeAxis
from . import sql
from .situation import Bucket, Situation

MOST_QUEUES = 5
"""The maximum of queues with a line of their own."""

Depths = dict[str, list[float | None]]
"""By queue, a depth for each bucket of the time axis; a gap where none was written. An empty name: the other queues."""


def depths(situation: Situation) -> Depths:
    axis = situation.axis
    names = [situation.queue_name] if situation.queue_name else _deepest(situation)
    asked = names if situation.queue_name else [*names, ""]
    values = {"span": int(situation.range.span), "width": axis.width, "queue_names": asked, "since": axis.start}
    return depths_of(axis, names, situation.store.rows(sql.DEPTHS, values))


def depths_of(axis: TimeAxis, names: list[str], rows: Iterable[tuple[str, float, int]]) -> Depths:
    """The depths of these queues by the rows of `DEPTHS`. The row of all queues together gives that of the others."""
    found: Depths = {name: [None] * axis.buckets for name in [*names, ""]}
    for name, starts_at, depth in rows:
        place = axis.place(starts_at)
        if place is not None:
            found[name][place] = depth
    everything = found.pop("")
    others = [
        None if all_of_them is None else max(0.0, all_of_them - sum(found[name][place] or 0.0 for name in names))
        for place, all_of_them in enumerate(everything)
    ]
    return found | ({"": others} if any(others) else {})


def _deepest(situation: Situation) -> list[str]:
    values = {"since": situation.axis.start, "limit": MOST_QUEUES}
    return [name for (name,) in situation.store.rows(sql.DEEPEST_QUEUES, values)]


SHARES = ((0.5, "p50"), (0.95, "p95"))
"""The quantiles that are drawn."""


def charts(situation: Situation) -> list[Chart]:
    return [
        _throughput(situation),
        _depths(situation),
        _times(situation, "waited", _("Waiting time"), lambda bucket: bucket.waited, *_oldest(situation)),
        _times(situation, "ran", _("Run time"), lambda bucket: bucket.ran),
    ]


def _throughput(situation: Situation) -> Chart:
    series = []
    for column, label in (("failed", _("failed")), ("retried", _("retried")), ("completed", _("completed"))):
        numbers: list[int] = [getattr(bucket, column) for bucket in situation.buckets]
        series.append(Series(label, column, numbers, grouped(sum(numbers))))
    title = gettext("Attempts in %(span)s") % {"span": situation.range.bucket_label}
    return _chart(situation, "throughput", title, series, scale.of_numbers, _number, stacks=True)


def _oldest(situation: Situation) -> Iterator[Series]:
    """How long the oldest queued job has waited: a job that has not begun is in no quantile."""
    values = [bucket.oldest for bucket in situation.buckets]
    if any(values):
        yield Series(_("oldest waiting"), "oldest", values, _last(values, span))


def _times(
    situation: Situation, name: str, title: Any, times: Callable[[Bucket], Sequence[int]], *more: Series
) -> Chart:
    series = []
    for share, label in SHARES:
        values = [counting.quantile(times(bucket), share) for bucket in situation.buckets]
        series.append(Series(label, label, values, _last(values, span)))
    return _chart(situation, name, title, [*series, *more], scale.of_durations, _duration)


def _depths(situation: Situation) -> Chart:
    found = depths(situation)
    series = [
        Series(name or _("other queues"), f"queue-{place}" if name else "other", values, _last(values, _number))
        for place, (name, values) in enumerate(found.items(), start=1)
    ]
    return _chart(situation, "depth", _("Queued jobs"), series, scale.of_numbers, _number)


def _chart(
    situation: Situation,
    name: str,
    title: Any,
    series: Sequence[Series],
    scale_for: Callable[[float], scale.Scale],
    written: Callable[[float], str],
    *,
    stacks: bool = False,
) -> Chart:
    return Chart(name, title, situation.times, scale_for, written, series, stacks=stacks)


def _last(values: Sequence[float | None], written: Callable[[float], str]) -> str:
    return next((written(value) for value in reversed(values) if value is not None), NOTHING)


def _number(number: float) -> str:
    return grouped(round(number))


def _duration(seconds: float) -> str:
    if not seconds:
        return "0"
    return roughly(seconds) if seconds < 10 and seconds == round(seconds) else span(seconds)
