"""The slowest tasks of the time that the dashboard shows, by their roll-ups."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.http import urlencode

from ...console.admin.dashboard.situation import HOUR, Situation
from ...console.counts import grouped
from ...console.durations import span
from ...values import counting
from .models import Span

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
