"""`Snapshot`: the queues, workers and jobs at one moment. Each count ends at a cap."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...models import Status
from ...queue.store import Store
from ...values.counting import quantile
from ..counts import Count
from ..job_states import RETRYING, Indexed, ScheduledCounts
from ..parts import PartStatus, consoles
from ..queue_states import QueueState, active_queues
from ..worker_health import Workforce

FAILED_IN_LAST_HOUR = "failed_in_last_hour"


@dataclass(frozen=True)
class Snapshot:
    at: datetime
    """By the database's clock."""
    queues: list[QueueState]
    """The queues that have jobs, have a rate, or are paused, alphabetically."""
    jobs: dict[str, Count]
    """The numbers of jobs outside the queues: waiting for a time or another job, and failed."""
    workforce: Workforce
    parts: list[PartStatus]

    @classmethod
    def now(cls) -> "Snapshot":
        store = Store.default()
        at, _ = store.heartbeats()
        workforce = Workforce.now()
        queues = sorted(active_queues(None, workforce), key=lambda queue: queue.name)
        parts = [part.status(store) for part in consoles() if part.status]
        return cls(at, queues, _counts(), workforce, parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "queues": [_queue_as_json(queue) for queue in self.queues],
            "jobs": {name: count_as_json(count) for name, count in self.jobs.items()},
            **{name: value for part in self.parts for name, value in part.as_json.items()},
            "workers": self.workforce.by_state,
        }


def _queue_as_json(queue: QueueState) -> dict[str, Any]:
    now, pause, rate = queue.now, queue.pause, queue.rate
    return {
        "queue": queue.name,
        "queued": now.queued,
        "is_estimate": now.is_estimate,
        "oldest_seconds": now.oldest,
        "blocked": count_as_json(queue.blocked),
        "running": now.running,
        "longest_seconds": now.longest,
        "jobs_per_minute": rate and rate.per_minute,
        "p95_wait_seconds": rate and quantile(rate.waited, 0.95),
        "workers": len(queue.workers),
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
