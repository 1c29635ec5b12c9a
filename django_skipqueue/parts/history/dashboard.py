"""What the history adds to the dashboard: charts, cards, and the table of the slowest tasks.

Each statement reads a limited number of rows of the history by an index, and does not read jobs. Python adds the rows
up into the time buckets of a chart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from django.utils.formats import date_format, number_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts as scale
from ...console.admin.charts import Chart, LocalTimes, Mark, Series, TimeAxis
from ...console.admin.dashboard import HOUR_SECONDS, Card, Level, Range, Situation, list_of
from ...console.admin.ui.addresses import address_of
from ...console.counts import grouped, rate_in_words
from ...console.durations import roughly, span
from ...console.facts import NOTHING
from ...models import Status
from ...queue.store import Store
from ...values import counting
from .deployments import deployments
from .models import Span

# Sent by charts. Returns the rows of a task in some queues since a time: each row's start, numbers and histograms. For
# each of at most 20 queues, these are one row per minute of a day, or one row per hour of a week. Index: the primary
# key of the roll-ups.
TIMELINE = """
SELECT
    date_part('epoch', starts_at), completed, retried, failed, discarded, waited, ran, waited_longest, ran_longest,
    oldest_seconds
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = ANY (%(queue_names)s)
    AND task = %(task)s
    AND starts_at >= to_timestamp(%(since)s)
LIMIT 5000
"""


DRAWN_QUANTILES = ((0.5, "p50"), (0.95, "p95"))
"""The quantiles in the charts of waiting and run times, with their labels."""


def _row_span(chart_range: Range) -> Span:
    return Span.HOUR if chart_range.bucket_seconds >= HOUR_SECONDS else Span.MINUTE


@dataclass(frozen=True)
class Timeline:
    """The outcomes and times of attempts, in the buckets of a time axis."""

    attempts: list[Series]
    waited: list[Series]
    ran: list[Series]
    oldest: list[float | None]
    """How many seconds the oldest queued job had been due. The quantiles only count jobs that have begun."""

    @classmethod
    def of(cls, store: Store, axis: TimeAxis, span: Span, queue_names: Sequence[str], task: str) -> "Timeline":
        """Read the timeline of one task in these queues. An empty name stands for all tasks or all queues."""
        numbers = {name: [0] * axis.bucket_count for name in ("failed", "retried", "completed")}
        waited: list[list[int]] = [[] for _ in range(axis.bucket_count)]
        ran: list[list[int]] = [[] for _ in range(axis.bucket_count)]
        longest: tuple[list[float], list[float]] = [0.0] * axis.bucket_count, [0.0] * axis.bucket_count  # waited, ran
        oldest: list[float | None] = [None] * axis.bucket_count
        values = {"span": int(span), "queue_names": list(queue_names), "task": task, "since": axis.start}
        for row in store.rows(TIMELINE, values):
            starts_at, completed, retried, failed, _discarded, *histograms, waited_most, ran_most, oldest_seconds = row
            bucket = axis.place(starts_at)
            if bucket is None:
                continue
            for name, number in (("completed", completed), ("retried", retried), ("failed", failed)):
                numbers[name][bucket] += number
            for totals, histogram in zip((waited, ran), histograms, strict=True):
                totals[bucket] = counting.added(totals[bucket], histogram or [])
            for maxima, seconds in zip(longest, (waited_most, ran_most), strict=True):
                maxima[bucket] = max(maxima[bucket], seconds or 0.0)
            if oldest_seconds is not None:
                oldest[bucket] = max(oldest[bucket] or 0.0, oldest_seconds)
        labels = {"failed": _("failed"), "retried": _("retried"), "completed": _("completed")}
        attempts = [Series(labels[name], name, counts, grouped(sum(counts))) for name, counts in numbers.items()]
        return cls(attempts, _quantiles(waited, longest[0]), _quantiles(ran, longest[1]), oldest)

    def charts(self, times: LocalTimes, bucket_label: object, changes: Sequence[Mark]) -> list[Chart]:
        """Return the charts of attempts, waiting times and run times. `bucket_label`: the length of a bucket."""
        title = gettext("Attempts in %(span)s") % {"span": bucket_label}
        waited = [*self.waited]
        if any(self.oldest):
            waited.append(Series(_("oldest waiting"), "oldest", self.oldest, _last_value(self.oldest, span)))
        numbers, durations = (scale.of_numbers, rounded), (scale.of_durations, _duration)
        return [
            Chart("throughput", title, times, *numbers, self.attempts, stacks=True, changes=changes),
            Chart("waited", _("Waiting time"), times, *durations, waited, changes=changes),
            Chart("ran", _("Run time"), times, *durations, self.ran, changes=changes),
        ]


def charts(situation: Situation) -> list[Chart]:
    store, times, queue_names = situation.store, situation.times, [situation.queue_name]
    changes = deployment_marks(store, times)
    timeline = Timeline.of(store, situation.axis, _row_span(situation.range), queue_names, task="")
    attempts, *durations = timeline.charts(times, situation.range.bucket_label, changes)
    depths = _depths(situation)
    depth = Chart("depth", _("Queued jobs"), times, scale.of_numbers, rounded, depths, changes=changes)
    return [attempts, depth, *durations]


def deployment_marks(store: Store, times: LocalTimes) -> list[Mark]:
    """Return a mark for the start of each deployment in the chart's time, the newest first."""
    marks = []
    for name, started_at in deployments(store, times.axis.start):
        since = date_format(datetime.fromtimestamp(started_at, times.zone), "D j H:i")
        label = gettext("deployment %(name)s since %(time)s") % {"name": name, "time": since}
        marks.append(times.mark(started_at, label))
    return marks


def _quantiles(histograms: Sequence[Sequence[int]], longest: Sequence[float]) -> list[Series]:
    """Return a line for each of `DRAWN_QUANTILES`. The arguments have one element for each bucket of the time axis."""
    series = []
    for share, label in DRAWN_QUANTILES:
        values = [counting.quantile(counts, share, most) for counts, most in zip(histograms, longest, strict=True)]
        series.append(Series(label, label, values, _last_value(values, span)))
    return series


def _last_value(values: Sequence[float | None], in_words: Callable[[float], str]) -> str:
    return next((in_words(value) for value in reversed(values) if value is not None), NOTHING)


def rounded(number: float) -> str:
    return grouped(round(number))


def _duration(seconds: float) -> str:
    if not seconds:
        return "0"
    return roughly(seconds) if seconds < 10 and seconds == round(seconds) else span(seconds)


# Sent by charts. Returns the names of the queues that have had the most queued jobs since a time, the deepest first.
# Reads up to a thousand queues. Index: the primary key of the roll-ups.
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

# Sent by charts. Splits the time since a given time into buckets of `width` seconds. For each of these queues and each
# bucket, returns the queue, the start of the bucket, and the greatest depth in it. Index: the primary key of the
# roll-ups.
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

MOST_DEPTH_LINES = 5
"""At most this many queues have a separate line in the chart."""


def _depths(situation: Situation) -> list[Series]:
    """Return a line for each of the deepest queues, and one line for all other queues together.

    A line has a gap where a supervisor has written no depth.
    """
    axis, store = situation.axis, situation.store
    values = {"since": axis.start, "limit": MOST_DEPTH_LINES}
    names = [situation.queue_name] if situation.queue_name else [name for (name,) in store.rows(DEEPEST_QUEUES, values)]
    names_read = names if situation.queue_name else [*names, ""]  # the empty name stands for all queues together
    depths_of: dict[str, list[float | None]] = {name: [None] * axis.bucket_count for name in [*names, ""]}
    parameters = {
        "span": int(_row_span(situation.range)),
        "width": axis.width,
        "queue_names": names_read,
        "since": axis.start,
    }
    for name, starts_at, depth in store.rows(DEPTHS, parameters):
        bucket = axis.place(starts_at)
        if bucket is not None:
            depths_of[name][bucket] = depth
    others = [
        None if total is None else max(0.0, total - sum(depths_of[name][bucket] or 0.0 for name in names))
        for bucket, total in enumerate(depths_of.pop(""))
    ]
    lines = [(name, f"queue-{place}", depths_of[name]) for place, name in enumerate(names, start=1)]
    if any(others):
        lines.append((gettext("other queues"), "other", others))
    return [Series(label, css_name, depths, _last_value(depths, rounded)) for label, css_name, depths in lines]


# Sent by cards. Returns how many jobs of a queue, or of all queues, supervisors have recovered from dead workers: in
# the last 24 hours, and in the last hour. Reads the rows of 1,440 minutes. Index: the primary key of the roll-ups.
RECOVERED_IN_A_DAY = """
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
"""This number of recovered jobs in an hour is an alarm, because the death of a few workers does not explain them."""


def rate(situation: Situation) -> Card:
    rates = situation.rates.get(situation.queue_name)
    number = rate_in_words(rates.per_minute if rates else 0.0)
    address = list_of(situation, status=Status.COMPLETED, time="hour")
    return Card(_("jobs per minute"), number, gettext("over the last 5 min"), address)


def recovered(situation: Situation) -> Card:
    ((of_day, of_hour),) = situation.store.rows(RECOVERED_IN_A_DAY, {"queue_name": situation.queue_name})
    level: Level = "alarm" if of_hour >= MANY_RECOVERED else "warning" if of_hour else ""
    detail = gettext("%(number)s in the last hour") % {"number": grouped(of_hour)} if of_day else ""
    address = address_of("worker_changelist")
    return Card(
        _("recovered in 24 h"), grouped(of_day), detail, address, level, permission="django_skipqueue.view_worker"
    )


# Sent by slowest tasks. Returns the tasks with the longest mean run time since a time: task, queue, attempts, failed
# attempts, mean and longest run time in seconds, and the histogram of run times. The histogram is an array of pairs:
# the number of a bucket (from 1) and its count; empty buckets are left out. The statement reads the newest 50,000 rows.
# Indexes: prune of the roll-ups, and their primary key.
SLOWEST_TASKS = """
WITH recent AS MATERIALIZED (
    SELECT
        queue_name, task, completed + snoozed + discarded AS passed, failed + retried AS failed, ran_seconds,
        ran_longest
    FROM skipqueue_rollup
    WHERE span = %(span)s AND starts_at >= to_timestamp(%(since)s)
    ORDER BY starts_at DESC
    LIMIT 50000
),
slow AS MATERIALIZED (
    SELECT
        task, queue_name, sum(passed + failed) AS attempts, sum(failed) AS failed,
        sum(ran_seconds) / sum(passed + failed) AS mean, max(ran_longest) AS longest
    FROM recent
    WHERE task <> '' AND (%(queue_name)s = '' OR queue_name = %(queue_name)s)
    GROUP BY task, queue_name
    HAVING sum(passed + failed) > 0
    ORDER BY mean DESC
    LIMIT %(limit)s
)
SELECT
    task, queue_name, attempts, failed, mean, longest,
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


MOST_SLOW_TASKS_READ = 12
"""The statement reads the histograms of this many tasks with the longest mean run time."""

MOST_SLOW_TASKS_SHOWN = 8


def slowest_tasks(situation: Situation) -> list[dict[str, Any]]:
    """Return the slowest tasks. Reads the history by hours, or by minutes if the dashboard shows a single hour."""
    is_short = situation.range.bucket_seconds * situation.range.bucket_count <= HOUR_SECONDS
    values = {
        "span": int(Span.MINUTE if is_short else Span.HOUR),
        "since": situation.axis.start,
        "queue_name": situation.queue_name,
        "limit": MOST_SLOW_TASKS_READ,
    }
    tasks_by_p95 = []
    for task, queue_name, number, failed, mean, longest, run_times in situation.store.rows(SLOWEST_TASKS, values):
        counts = counting.all_buckets(())
        for bucket_number, count in run_times:
            counts[int(bucket_number) - 1] = int(count)
        p95 = counting.quantile(counts, 0.95, longest) or 0.0
        failed_percent = 100 * int(failed) / int(number)
        cells = {
            "task": task,
            "queue_name": queue_name,
            "attempts": grouped(int(number)),
            "mean_in_words": span(mean),
            "p95_in_words": span(p95),
            "failed_share": f"{number_format(failed_percent, 1 if 0 < failed_percent < 10 else 0)} %",
        }
        tasks_by_p95.append((p95, cells))
    tasks_by_p95.sort(key=itemgetter(0), reverse=True)
    return [cells for _p95, cells in tasks_by_p95[:MOST_SLOW_TASKS_SHOWN]]
