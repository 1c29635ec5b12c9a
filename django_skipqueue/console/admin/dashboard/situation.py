"""What several parts of the dashboard show, read once: the time, the queues and the workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ....queue.store import Store
from ...queues_and_workers import QueueRate, QueueState, Workforce, queue_states, rates_now
from ..charts import LocalTimes, TimeAxis

HOUR = 3_600


@dataclass(frozen=True)
class Range:
    """A stretch of time that the dashboard can show."""

    slug: str
    label: Any
    bucket: int
    """Seconds."""
    buckets: int
    mark_every: timedelta
    """The distance of the labels of the time axis."""
    bucket_label: Any
    """The length of a bucket, as text."""


RANGES = (
    Range("1h", _("1 hour"), 60, 60, timedelta(minutes=10), _("1 min")),
    Range("6h", _("6 hours"), 5 * 60, 72, timedelta(hours=1), _("5 min")),
    Range("24h", _("24 hours"), 15 * 60, 96, timedelta(hours=4), _("15 min")),
    Range("7d", _("7 days"), 2 * HOUR, 84, timedelta(days=1), _("2 h")),
)


def range_of(slug: str | None) -> Range:
    """The range of this name; of any other, the first."""
    return next((each for each in RANGES if each.slug == slug), RANGES[0])


# dashboard → the time on the database's clock, in seconds since the epoch.
NOW = "SELECT date_part('epoch', statement_timestamp())"


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
        ((now,),) = store.rows(NOW)
        return cls(store, range, queue_name, now)

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.now, width=self.range.bucket, buckets=self.range.buckets)

    @cached_property
    def times(self) -> LocalTimes:
        """The time axis as text, in the time zone of the project, or in the one that it has activated for the user."""
        return LocalTimes(self.axis, timezone.get_current_timezone(), self.range.mark_every)

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
