"""The charts of the dashboard: throughput, waiting times, run times, depths. A further one is a line in `charts`.

Each statement reads a bounded number of roll-ups by an index, and no job. The rows are added up in the buckets of a
chart. The depths are those of the deepest queues over time, and of all others together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts as scale
from ...console.admin.charts import NOTHING, Chart, Series, TimeAxis
from ...console.admin.dashboard.situation import HOUR, Range, Situation
from ...console.counts import grouped
from ...console.durations import roughly, span
from ...queue.store import Store
from ...values import counting
from .models import Span

# charts → the roll-ups of a task in a queue since a time: when each starts, its numbers and histograms. At most a row
# for each minute of a day. Index: the primary key of the roll-ups.
TIMELINE = """
SELECT date_part('epoch', starts_at), completed, retried, failed, discarded, waited, ran, oldest_seconds
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = %(queue_name)s
    AND task = %(task)s
    AND starts_at >= to_timestamp(%(since)s)
LIMIT 5000
"""

# charts → the names of the queues that were deepest since a time, the deepest first. Of all queues, a thousand are
# looked at. Index: the primary key of the roll-ups.
DEEPEST_QUEUES = """
WITH queue AS MATERIALIZED (
    SELECT queue_name AS name
    FROM (
        SELECT queue_name, task FROM skipqueue_rollup WHERE span = 0 ORDER BY queue_name, task LIMIT 20000
    ) AS rollup
    WHERE task = '' AND queue_name <> ''
    LIMIT 1000
)
SELECT queue.name
FROM
    queue,
    LATERAL (
        SELECT max(depth) AS depth
        FROM skipqueue_rollup
        WHERE
            span = 3600
            AND queue_name = queue.name
            AND task = ''
            AND starts_at >= date_trunc('hour', to_timestamp(%(since)s))
    ) AS deepest
WHERE deepest.depth > 0
ORDER BY deepest.depth DESC, queue.name
LIMIT %(limit)s
"""

# charts → the greatest depth of each of these queues in each bucket of `width` seconds since a time: the queue, the
# start of the bucket, the depth. Index: the primary key of the roll-ups.
DEPTHS = """
SELECT queue_name, floor(date_part('epoch', starts_at) / %(width)s) * %(width)s AS bucket, max(depth)
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = ANY (%(queue_names)s)
    AND task = ''
    AND starts_at >= to_timestamp(%(since)s)
    AND depth IS NOT NULL
GROUP BY queue_name, bucket
"""


@dataclass
class Bucket:
    """What happened in one stretch of time; without a roll-up nothing did."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    discarded: int = 0
    waited: Sequence[int] = field(default_factory=counting.empty)
    ran: Sequence[int] = field(default_factory=counting.empty)
    oldest: float | None = None
    """The longest time in seconds for which a queued job had been due."""

    def add(self, other: "Bucket") -> None:
        self.completed += other.completed
        self.retried += other.retried
        self.failed += other.failed
        self.discarded += other.discarded
        self.waited = counting.added(self.waited, other.waited)
        self.ran = counting.added(self.ran, other.ran)
        if other.oldest is not None:
            self.oldest = max(self.oldest or 0.0, other.oldest)


def timeline(store: Store, axis: TimeAxis, span: Span, queue_name: str = "") -> list[Bucket]:
    """Query the roll-ups of a queue, or of all, for this time: a bucket for each of the axis."""
    values = {"span": int(span), "queue_name": queue_name, "task": "", "since": axis.start}
    return buckets_of(axis, store.rows(TIMELINE, values))


def buckets_of(axis: TimeAxis, rows: Iterable[tuple[Any, ...]]) -> list[Bucket]:
    buckets = [Bucket() for _ in range(axis.buckets)]
    for starts_at, completed, retried, failed, discarded, waited, ran, oldest in rows:
        place = axis.place(starts_at)
        if place is not None:
            times = (waited or counting.empty(), ran or counting.empty())
            buckets[place].add(Bucket(completed, retried, failed, discarded, *times, oldest))
    return buckets


MOST_QUEUES = 5
"""The maximum of queues with a line of their own."""

Depths = dict[str, list[float | None]]
"""By queue, a depth for each bucket of the time axis; a gap where none was written. An empty name: the other queues."""


def depths(situation: Situation) -> Depths:
    axis = situation.axis
    names = [situation.queue_name] if situation.queue_name else _deepest(situation)
    asked = names if situation.queue_name else [*names, ""]
    values = {"span": int(_span(situation.range)), "width": axis.width, "queue_names": asked, "since": axis.start}
    return depths_of(axis, names, situation.store.rows(DEPTHS, values))


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
    return [name for (name,) in situation.store.rows(DEEPEST_QUEUES, values)]


SHARES = ((0.5, "p50"), (0.95, "p95"))
"""The quantiles that are drawn."""


def charts(situation: Situation) -> list[Chart]:
    buckets = timeline(situation.store, situation.axis, _span(situation.range), situation.queue_name)
    waited = [bucket.waited for bucket in buckets]
    return [
        _throughput(situation, buckets),
        _depths(situation),
        _times(situation, "waited", _("Waiting time"), waited, *_oldest(buckets)),
        _times(situation, "ran", _("Run time"), [bucket.ran for bucket in buckets]),
    ]


def _span(shown: Range) -> Span:
    """The span of the roll-ups that the buckets are added up from."""
    return Span.HOUR if shown.bucket >= HOUR else Span.MINUTE


def _throughput(situation: Situation, buckets: list[Bucket]) -> Chart:
    series = []
    for column, label in (("failed", _("failed")), ("retried", _("retried")), ("completed", _("completed"))):
        numbers: list[int] = [getattr(bucket, column) for bucket in buckets]
        series.append(Series(label, column, numbers, grouped(sum(numbers))))
    title = gettext("Attempts in %(span)s") % {"span": situation.range.bucket_label}
    return _chart(situation, "throughput", title, series, scale.of_numbers, _number, stacks=True)


def _oldest(buckets: list[Bucket]) -> Iterator[Series]:
    """How long the oldest queued job has waited: a job that has not begun is in no quantile."""
    values = [bucket.oldest for bucket in buckets]
    if any(values):
        yield Series(_("oldest waiting"), "oldest", values, _last(values, span))


def _times(situation: Situation, name: str, title: Any, times: Sequence[Sequence[int]], *more: Series) -> Chart:
    series = []
    for share, label in SHARES:
        values = [counting.quantile(counts, share) for counts in times]
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
