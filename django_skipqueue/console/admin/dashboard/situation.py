"""What several parts of the dashboard show, read once: the time, the queues, the workers, the newest roll-ups.

A stretch of time is one of those that the dashboard can show. Its roll-ups are added up in the buckets of a chart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ....parts.history.models import Span
from ....queue.observe import QueueRate, rates_now
from ....queue.store import Store
from ....values import counting
from ...queue_states import QueueState, queue_states
from ...worker_health import Workforce
from ..charts import LocalTimes, TimeAxis
from . import sql

HOUR = 3_600


@dataclass(frozen=True)
class Range:
    slug: str
    label: Any
    bucket: int
    """Seconds."""
    buckets: int
    mark_every: timedelta
    """The distance of the labels of the time axis."""
    span: Span
    """Of the roll-ups that the buckets are added up from."""
    bucket_label: Any
    """The length of a bucket, as text."""


RANGES = (
    Range("1h", _("1 hour"), 60, 60, timedelta(minutes=10), Span.MINUTE, _("1 min")),
    Range("6h", _("6 hours"), 5 * 60, 72, timedelta(hours=1), Span.MINUTE, _("5 min")),
    Range("24h", _("24 hours"), 15 * 60, 96, timedelta(hours=4), Span.MINUTE, _("15 min")),
    Range("7d", _("7 days"), 2 * HOUR, 84, timedelta(days=1), Span.HOUR, _("2 h")),
)


def range_of(slug: str | None) -> Range:
    """The range of this name; of any other, the first."""
    return next((each for each in RANGES if each.slug == slug), RANGES[0])


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
    return buckets_of(axis, store.rows(sql.TIMELINE, values))


def buckets_of(axis: TimeAxis, rows: Iterable[tuple[Any, ...]]) -> list[Bucket]:
    buckets = [Bucket() for _ in range(axis.buckets)]
    for starts_at, completed, retried, failed, discarded, waited, ran, oldest in rows:
        place = axis.place(starts_at)
        if place is not None:
            times = (waited or counting.empty(), ran or counting.empty())
            buckets[place].add(Bucket(completed, retried, failed, discarded, *times, oldest))
    return buckets


@dataclass(frozen=True)
class Situation:
    store: Store
    range: Range
    queue_name: str
    """Only this queue is shown; empty: all are."""
    now: float
    """By the database's clock, in seconds since the epoch."""

    @classmethod
    def of(cls, store: Store, range: Range, queue_name: str) -> "Situation":
        ((now,),) = store.rows(sql.NOW)
        return cls(store, range, queue_name, now)

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.now, width=self.range.bucket, buckets=self.range.buckets)

    @cached_property
    def times(self) -> LocalTimes:
        """The time axis as text, in the time zone of the project, or in the one that it has activated for the user."""
        return LocalTimes(self.axis, timezone.get_current_timezone(), self.range.mark_every)

    @cached_property
    def buckets(self) -> list[Bucket]:
        return timeline(self.store, self.axis, self.range.span, self.queue_name)

    @cached_property
    def recovered(self) -> tuple[int, int]:
        """The numbers of jobs that were recovered from dead workers in the last 24 hours, and in the last one."""
        ((of_day, of_hour),) = self.store.rows(sql.RECOVERED, {"queue_name": self.queue_name})
        return of_day, of_hour

    @cached_property
    def all_queues(self) -> list[QueueState]:
        return queue_states(self.rates, self.workforce)

    @property
    def queues(self) -> Sequence[QueueState]:
        return [queue for queue in self.all_queues if self.queue_name in ("", queue.name)]

    @cached_property
    def workforce(self) -> Workforce:
        return Workforce.now()

    @cached_property
    def rates(self) -> dict[str, QueueRate]:
        """The rates of the last minutes by queue; an empty name: of all together."""
        return rates_now(self.store)
