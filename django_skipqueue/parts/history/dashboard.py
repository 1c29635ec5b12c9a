"""What the dashboard shows of roll-ups: charts, cards, and the slowest tasks. A further chart is a line in `charts`.

Each statement reads a bounded number of roll-ups by an index, and no job. The rows are added up in the buckets of a
chart. The depths are those of the deepest queues over time, and of all others together.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from django.urls import reverse
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts as scale
from ...console.admin.charts import Chart, Series
from ...console.admin.dashboard import HOUR, Card, Level, Range, Situation, list_of
from ...console.counts import grouped, rate_in_words
from ...console.durations import roughly, span
from ...console.facts import NOTHING
from ...models import Status
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


SHARES = ((0.5, "p50"), (0.95, "p95"))
"""The quantiles that are drawn."""


def _span(shown: Range) -> Span:
    return Span.HOUR if shown.bucket >= HOUR else Span.MINUTE


def charts(situation: Situation) -> list[Chart]:
    axis = situation.axis
    numbers = {name: [0] * axis.buckets for name in ("failed", "retried", "completed")}
    waited: list[list[int]] = [[] for _ in range(axis.buckets)]
    ran: list[list[int]] = [[] for _ in range(axis.buckets)]
    oldest: list[float | None] = [None] * axis.buckets
    """The longest time in seconds for which a queued job had been due: a job that has not begun is in no quantile."""
    span_of_rows = int(_span(situation.range))
    values = {"span": span_of_rows, "queue_name": situation.queue_name, "task": "", "since": axis.start}
    for starts_at, completed, retried, failed, _discarded, *times, waits in situation.store.rows(TIMELINE, values):
        place = axis.place(starts_at)
        if place is None:
            continue
        for name, number in (("completed", completed), ("retried", retried), ("failed", failed)):
            numbers[name][place] += number
        for counts, more in zip((waited, ran), times, strict=True):
            counts[place] = counting.added(counts[place], more or [])
        if waits is not None:
            oldest[place] = max(oldest[place] or 0.0, waits)
    labels = {"failed": _("failed"), "retried": _("retried"), "completed": _("completed")}
    attempts = [Series(labels[name], name, each, grouped(sum(each))) for name, each in numbers.items()]
    title = gettext("Attempts in %(span)s") % {"span": situation.range.bucket_label}
    waits_of_all = _quantiles(waited)
    if any(oldest):
        waits_of_all.append(Series(_("oldest waiting"), "oldest", oldest, _last(oldest, span)))
    times_shown = situation.times
    return [
        Chart("throughput", title, times_shown, scale.of_numbers, _number, attempts, stacks=True),
        Chart("depth", _("Queued jobs"), times_shown, scale.of_numbers, _number, _depths(situation)),
        Chart("waited", _("Waiting time"), times_shown, scale.of_durations, _duration, waits_of_all),
        Chart("ran", _("Run time"), times_shown, scale.of_durations, _duration, _quantiles(ran)),
    ]


def _quantiles(times: Sequence[Sequence[int]]) -> list[Series]:
    found = []
    for share, label in SHARES:
        values = [counting.quantile(counts, share) for counts in times]
        found.append(Series(label, label, values, _last(values, span)))
    return found


def _last(values: Sequence[float | None], written: Callable[[float], str]) -> str:
    return next((written(value) for value in reversed(values) if value is not None), NOTHING)


def _number(number: float) -> str:
    return grouped(round(number))


def _duration(seconds: float) -> str:
    if not seconds:
        return "0"
    return roughly(seconds) if seconds < 10 and seconds == round(seconds) else span(seconds)


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

MOST_QUEUES = 5
"""The maximum of queues with a line of their own."""


def _depths(situation: Situation) -> list[Series]:
    """A line for each of the deepest queues, and one for the others; a gap where no depth was written."""
    axis, store = situation.axis, situation.store
    values = {"since": axis.start, "limit": MOST_QUEUES}
    names = [situation.queue_name] if situation.queue_name else [name for (name,) in store.rows(DEEPEST_QUEUES, values)]
    asked = names if situation.queue_name else [*names, ""]  # the empty name: all queues together
    found: dict[str, list[float | None]] = {name: [None] * axis.buckets for name in [*names, ""]}
    wanted = {"span": int(_span(situation.range)), "width": axis.width, "queue_names": asked, "since": axis.start}
    for name, starts_at, depth in store.rows(DEPTHS, wanted):
        place = axis.place(starts_at)
        if place is not None:
            found[name][place] = depth
    others = [
        None if all_of_them is None else max(0.0, all_of_them - sum(found[name][place] or 0.0 for name in names))
        for place, all_of_them in enumerate(found.pop(""))
    ]
    lines = [(name, f"queue-{place}", found[name]) for place, name in enumerate(names, start=1)]
    if any(others):
        lines.append((gettext("other queues"), "other", others))
    return [Series(label, css, depths, _last(depths, _number)) for label, css, depths in lines]


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


def slowest_tasks(situation: Situation) -> list[dict[str, Any]]:
    """Query the tasks. Roll-ups of hours will do for all but the shortest time."""
    is_short = situation.range.bucket * situation.range.buckets <= HOUR
    values = {
        "span": int(Span.MINUTE if is_short else Span.HOUR),
        "since": situation.axis.start,
        "queue_name": situation.queue_name,
        "limit": MOST_READ,
    }
    found = []
    for task, queue_name, number, failed, mean, ran in situation.store.rows(SLOWEST_TASKS, values):
        counts = counting.full(())
        for place, times in ran:
            counts[int(place) - 1] = int(times)
        p95, share = counting.quantile(counts, 0.95) or 0.0, 100 * int(failed) / int(number)
        shown = {
            "task": task,
            "queue_name": queue_name,
            "query": urlencode({"task": task}),
            "attempts": grouped(int(number)),
            "mean_in_words": span(mean),
            "p95_in_words": span(p95),
            "failed_share": f"{number_format(share, 1 if 0 < share < 10 else 0)} %",
        }
        found.append((p95, shown))
    found.sort(key=itemgetter(0), reverse=True)
    return [shown for _, shown in found[:MOST_SHOWN]]
