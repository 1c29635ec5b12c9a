"""What several parts of the dashboard show, read once: the time, the queues, the workers, the newest roll-ups."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.utils import timezone

from ...operators.queue_states import QueueState, queue_states
from ...operators.worker_health import Workforce
from ...store import Store
from ...store.observe import QueueRate
from ..charts.local_times import LocalTimes
from ..charts.time_axis import TimeAxis
from . import sql
from .ranges import Range
from .timeline import Bucket, timeline


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
        return self.store.rates_now()
