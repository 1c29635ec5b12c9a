"""What the dashboard shows of roll-ups: charts, cards, and the slowest tasks. A further chart is a line in `charts`.

Each statement reads a bounded number of roll-ups by an index, and no job. The rows are added up in the buckets of a
chart. The depths are those of the deepest queues over time, and of all others together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.urls import reverse
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts as scale
from ...console.admin.charts import NOTHING, Chart, Series, TimeAxis
from ...console.admin.dashboard.cards import Card, Level, list_of
from ...console.admin.dashboard.situation import HOUR, Range, Situation
from ...console.counts import grouped, rate_in_words
from ...console.durations import roughly, span
from ...models import Status
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


# cards → the jobs that were recovered from dead workers, of a queue or of all: in the last 24 hours and in the last
# one, by the roll-ups of 1440 minutes. Index: the primary key of the roll-ups.
RECOVERED = """
SELECT
    COALESCE(sum(recovered), 0)::bigint,
    COALESCE(sum(recovered) FILTER (WHERE starts_at >= statement_timestamp() - interval '1 hour'), 0)::bigint
FROM skipqueue_rollup
WHERE
    span = 60
    AND queue_name = %(queue_name)s
    AND task = ''
    AND starts_at >= statement_timestamp() - interval '24 hours'
"""


MANY_RECOVERED = 100
"""Recovered jobs in an hour that are more than the end of a few workers explains."""


def rate(situation: Situation) -> Card:
    rates = situation.rates.get(situation.queue_name)
    number = rate_in_words(rates.per_minute if rates else 0.0)
    address = list_of(situation, status=Status.COMPLETED, time="hour")
    return Card(_("jobs per minute"), number, gettext("over the last 5 min"), address)


def recovered(situation: Situation) -> Card:
    ((of_day, of_hour),) = situation.store.rows(RECOVERED, {"queue_name": situation.queue_name})
    level: Level = "alarm" if of_hour >= MANY_RECOVERED else "warning" if of_hour else ""
    detail = gettext("%(number)s in the last hour") % {"number": grouped(of_hour)} if of_day else ""
    address = reverse("admin:django_skipqueue_worker_changelist")
    return Card(
        _("recovered in 24 h"), grouped(of_day), detail, address, level, permission="django_skipqueue.view_worker"
    )


# slowest tasks → the tasks with the longest mean run time since a time: task, queue, attempts, failed attempts, mean
# run time in seconds, histogram of run times, without its empty buckets: pairs of a place, from 1 on, and a count. Of
# the roll-ups, the newest 50,000 are looked at. Indexes: prune of the roll-ups, and their primary key.
SLOWEST_TASKS = """
WITH recent AS MATERIALIZED (
    SELECT queue_name, task, completed + snoozed + discarded AS passed, failed + retried AS failed, ran_seconds
    FROM skipqueue_rollup
    WHERE span = %(span)s AND starts_at >= to_timestamp(%(since)s)
    ORDER BY starts_at DESC
    LIMIT 50000
),
slow AS MATERIALIZED (
    SELECT
        task, queue_name, sum(passed + failed) AS attempts, sum(failed) AS failed,
        sum(ran_seconds) / sum(passed + failed) AS mean
    FROM recent
    WHERE task <> '' AND (%(queue_name)s = '' OR queue_name = %(queue_name)s)
    GROUP BY task, queue_name
    HAVING sum(passed + failed) > 0
    ORDER BY mean DESC
    LIMIT %(limit)s
)
SELECT
    task, queue_name, attempts, failed, mean,
    ARRAY (
        SELECT ARRAY[place, sum(number)]
        FROM skipqueue_rollup AS rollup, unnest(rollup.ran) WITH ORDINALITY AS bucket (number, place)
        WHERE
            rollup.span = %(span)s
            AND rollup.queue_name = slow.queue_name
            AND rollup.task = slow.task
            AND rollup.starts_at >= to_timestamp(%(since)s)
            AND number > 0
        GROUP BY place
    )
FROM slow
"""


MOST_READ = 12
"""Tasks whose histograms are read: those with the longest mean run time."""

MOST_SHOWN = 8


@dataclass(frozen=True)
class SlowTask:
    task: str
    queue_name: str
    number: int
    """Of attempts."""
    failed: int
    """Of these attempts."""
    mean: float
    p95: float
    """Seconds."""

    @property
    def query(self) -> str:
        return urlencode({"task": self.task})

    @property
    def attempts(self) -> str:
        return grouped(self.number)

    @property
    def mean_in_words(self) -> str:
        return span(self.mean)

    @property
    def p95_in_words(self) -> str:
        return span(self.p95)

    @property
    def failed_share(self) -> str:
        share = 100 * self.failed / self.number
        return f"{number_format(share, 1 if 0 < share < 10 else 0)} %"


def slowest_tasks(situation: Situation) -> list[SlowTask]:
    """Query the tasks. Roll-ups of hours will do for all but the shortest time."""
    is_short = situation.range.bucket * situation.range.buckets <= HOUR
    values = {
        "span": int(Span.MINUTE if is_short else Span.HOUR),
        "since": situation.axis.start,
        "queue_name": situation.queue_name,
        "limit": MOST_READ,
    }
    return slowest_of(situation.store.rows(SLOWEST_TASKS, values))


def slowest_of(rows: Iterable[tuple[Any, ...]]) -> list[SlowTask]:
    found = [
        SlowTask(task, queue_name, int(number), int(failed), mean, counting.quantile(_histogram(ran), 0.95) or 0.0)
        for task, queue_name, number, failed, mean, ran in rows
    ]
    return sorted(found, key=lambda each: each.p95, reverse=True)[:MOST_SHOWN]


def _histogram(filled: Iterable[tuple[Any, Any]]) -> list[int]:
    counts = counting.full(())
    for place, number in filled:
        counts[int(place) - 1] = int(number)
    return counts
