"""The slowest tasks within the chosen time, by their roll-ups."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.http import urlencode

from ...models.rollup import Span
from ...operators.counts import grouped
from ...operators.durations import span
from ...values import histogram
from . import sql
from .ranges import HOUR
from .situation import Situation

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
    return slowest_of(situation.store.rows(sql.SLOWEST_TASKS, values))


def slowest_of(rows: Iterable[tuple[Any, ...]]) -> list[SlowTask]:
    found = [
        SlowTask(task, queue_name, int(number), int(failed), mean, histogram.quantile(_histogram(ran), 0.95) or 0.0)
        for task, queue_name, number, failed, mean, ran in rows
    ]
    return sorted(found, key=lambda each: each.p95, reverse=True)[:MOST_SHOWN]


def _histogram(filled: Iterable[tuple[Any, Any]]) -> list[int]:
    counts = histogram.full(())
    for place, number in filled:
        counts[int(place) - 1] = int(number)
    return counts
