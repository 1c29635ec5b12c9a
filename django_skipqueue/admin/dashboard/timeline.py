"""The roll-ups of a stretch of time, added up in the buckets of a chart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...models.rollup import Span
from ...store import Store
from ...values import histogram
from ..charts.time_axis import TimeAxis
from . import sql


@dataclass
class Bucket:
    """What happened in one stretch of time; without a roll-up nothing did."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    discarded: int = 0
    waited: Sequence[int] = field(default_factory=histogram.empty)
    ran: Sequence[int] = field(default_factory=histogram.empty)
    oldest: float | None = None
    """The longest time in seconds for which a queued job had been due."""

    def add(self, other: "Bucket") -> None:
        self.completed += other.completed
        self.retried += other.retried
        self.failed += other.failed
        self.discarded += other.discarded
        self.waited = histogram.added(self.waited, other.waited)
        self.ran = histogram.added(self.ran, other.ran)
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
            times = (waited or histogram.empty(), ran or histogram.empty())
            buckets[place].add(Bucket(completed, retried, failed, discarded, *times, oldest))
    return buckets
