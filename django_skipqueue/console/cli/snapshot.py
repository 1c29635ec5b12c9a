"""`Snapshot`: the queues, workers and jobs at one moment. Each count ends at a cap."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...models import Queue, Status
from ...queue.observe import QueueNow, queues_now
from ...queue.store import Store
from ...values.counting import empty, quantile
from ..blocked_jobs import MOST_BLOCKED, BlockedNow, blocked_now
from ..counts import Count
from ..job_states import RETRYING, Indexed, ScheduledCounts
from ..parts import PartStatus, consoles
from ..queue_states import QueueRate, has_rates, rates_now
from ..worker_health import Workforce

FAILED_IN_LAST_HOUR = "failed_in_last_hour"

MOST_PAUSED = 1_000
"""Paused queues that are read."""


@dataclass(frozen=True)
class Snapshot:
    at: datetime
    """By the database's clock."""
    queues: list[QueueNow]
    """The queues that have queued or running jobs, have a rate, or are paused."""
    rates: dict[str, QueueRate]
    """The rates of the queues in which jobs have ended in the last minutes."""
    paused: dict[str, Queue]
    jobs: dict[str, Count]
    """The numbers of jobs outside the queues: waiting for a time or another job, and failed."""
    workforce: Workforce
    blocked: BlockedNow
    parts: list[PartStatus]

    @classmethod
    def now(cls) -> "Snapshot":
        store = Store.default()
        at, _ = store.heartbeats()
        paused = {queue.name: queue for queue in Queue.objects.paused().order_by("name")[:MOST_PAUSED]}
        rates = {name: rate for name, rate in rates_now(store).items() if name}
        queues = {queue.name: queue for queue in queues_now(store)}
        blocked = blocked_now(store)
        queues = {name: QueueNow(name, 0, False, None, 0, None) for name in (*paused, *rates, *blocked.queues)} | queues
        shown = [queues[name] for name in sorted(queues)]
        workforce = Workforce.now()
        parts = [part.status(store) for part in consoles() if part.status]
        return cls(at, shown, rates, paused, _counts(), workforce, blocked, parts)

    def blocked_in(self, queue: QueueNow) -> Count:
        return Count(self.blocked.queues.get(queue.name, 0), self.blocked.is_least, MOST_BLOCKED)

    def rate_of(self, queue: QueueNow) -> QueueRate | None:
        """The rate of the queue; `None` if no part knows rates."""
        return self.rates.get(queue.name, QueueRate(0.0, empty()) if has_rates() else None)

    def workers_of(self, queue: QueueNow) -> int:
        return len(self.workforce.serving(queue.name))

    def as_json(self) -> dict[str, Any]:
        states = [worker.state for worker in self.workforce.workers if worker.slots]
        return {
            "at": self.at,
            "queues": [self._queue_as_json(queue) for queue in self.queues],
            "jobs": {name: count_as_json(count) for name, count in self.jobs.items()},
            **{name: value for part in self.parts for name, value in part.as_json.items()},
            "workers": {state: states.count(state) for state in ("live", "late", "stale")},
        }

    def _queue_as_json(self, queue: QueueNow) -> dict[str, Any]:
        pause, rate = self.paused.get(queue.name), self.rate_of(queue)
        return {
            "queue": queue.name,
            "queued": queue.queued,
            "is_estimate": queue.is_estimate,
            "oldest_seconds": queue.oldest,
            "blocked": count_as_json(self.blocked_in(queue)),
            "running": queue.running,
            "longest_seconds": queue.longest,
            "jobs_per_minute": rate and rate.per_minute,
            "p95_wait_seconds": rate and quantile(rate.waited, 0.95),
            "workers": self.workers_of(queue),
            "is_paused": pause is not None,
            "paused_until": pause.paused_until if pause else None,
        }


def counted(count: Count) -> str:
    """The number, with a plus if there are more: `10,000+`."""
    return f"{count.shown:,}{'+' if count.is_capped else ''}"


def in_full(count: Count) -> str:
    """The number within a sentence: `at least 5,001`, `more than 10,000`."""
    if count.found > count.cap:
        return f"more than {count.shown:,}"
    return f"{'at least ' if count.is_least else ''}{count.shown:,}"


def count_as_json(count: Count) -> dict[str, Any]:
    return {"count": count.shown, "or_more": count.is_capped}


def _counts() -> dict[str, Count]:
    scheduled = ScheduledCounts.now()
    return {
        Status.SCHEDULED.value: scheduled.first,
        RETRYING: scheduled.retrying,
        Status.BLOCKED.value: Indexed(Status.BLOCKED).count(),
        Status.FAILED.value: Indexed(Status.FAILED).count(),
        FAILED_IN_LAST_HOUR: Indexed(Status.FAILED, since=timedelta(hours=1)).count(),
    }
