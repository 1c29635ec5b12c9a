"""`skipqueue status`: the queues, the workers and the jobs, at one moment or again and again.

Invariant: no statement counts further than a cap, so that the answer takes no longer with ten million jobs.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...conf import settings
from ...events.log_format import in_words, printable
from ...models import Status as JobStatus
from ...queue.store import Store
from ...values.counting import quantile
from ..counts import Count
from ..job_states import RETRYING, Indexed, ScheduledCounts
from ..parts import PartStatus, consoles, externals
from ..queues_and_workers import QueueState, Workforce, active_queues
from .subcommand import Exit, Watchable
from .terminal import RED, YELLOW, Coloured, Console, shown_time

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
        scheduled = ScheduledCounts.now()
        jobs = {
            JobStatus.SCHEDULED.value: scheduled.first,
            RETRYING: scheduled.retrying,
            JobStatus.BLOCKED.value: Indexed(JobStatus.BLOCKED).count(),
            JobStatus.FAILED.value: Indexed(JobStatus.FAILED).count(),
            FAILED_IN_LAST_HOUR: Indexed(JobStatus.FAILED, since=timedelta(hours=1)).count(),
        }
        return cls(at, queues, jobs, workforce, parts)

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


class Status(Watchable):
    name = "status"
    help = "Show the queues, the workers, and how many jobs wait and have failed"

    def run(self, console: Console, **options: Any) -> Exit:
        _show(console, Snapshot.now(), in_json=options["json"])
        return Exit.DONE


HEADINGS = ("queue", "queued", "oldest", "running", "longest", "jobs/min", "p95 wait", "workers", "note")


def _show(console: Console, snapshot: Snapshot, *, in_json: bool) -> None:
    if in_json:
        console.json(snapshot.as_json())
        return
    console.line(shown_time(snapshot.at))
    console.line()
    if snapshot.queues:
        rows = [_row(queue) for queue in snapshot.queues]
        console.table(HEADINGS, rows, right=HEADINGS[1:-1])
    else:
        console.line("No job is queued or running, and none has ended lately.")
    console.line()
    if blocked := [queue for queue in snapshot.queues if queue.blocked.found]:
        named = ", ".join(f"{queue.name} {counted(queue.blocked)}" for queue in blocked)
        console.line(printable(f"Blocked: {named}."))
    jobs = snapshot.jobs
    last_hour = in_full(jobs[FAILED_IN_LAST_HOUR])
    texts = [f"{in_full(count)} {name}" for name, count in jobs.items() if name != FAILED_IN_LAST_HOUR]
    console.line(f"Jobs: {', '.join(texts)} ({last_hour} in the last hour).")
    late = [
        f"{worker.name} {worker.state} for {in_words(worker.age.total_seconds())}"
        for worker in snapshot.workforce.late_or_stale[:5]
    ]
    numbers = ", ".join(f"{number} {state}" for state, number in snapshot.workforce.by_state.items())
    named = f" ({', '.join(late)})" if late else ""
    console.line(printable(f"Workers: {numbers}{named}."))
    for part in snapshot.parts:
        for line in part.lines:
            console.line(printable(line))


def _row(queue: QueueState) -> list[str]:
    now, rate = queue.now, queue.rate
    waited = rate and quantile(rate.waited, 0.95)
    return [
        queue.name,
        f"{'about ' if now.is_estimate else ''}{now.queued:,}",
        "" if now.oldest is None else in_words(now.oldest),
        f"{now.running:,}",
        "" if now.longest is None else in_words(now.longest),
        "" if rate is None else _number(rate.per_minute),
        "" if waited is None else in_words(waited),
        f"{len(queue.workers)}",
        _note(queue),
    ]


def _number(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 1 or not per_minute else f"{per_minute:.1g}"


def _note(queue: QueueState) -> str:
    if pause := queue.pause:
        until = f"until {shown_time(pause.paused_until)}" if pause.paused_until else "until it is resumed"
        by, reason = f" by {pause.paused_by}" if pause.paused_by else "", f": {pause.reason}" if pause.reason else ""
        return Coloured(f"paused {until}{by}{reason}", YELLOW)
    if not queue.workers:
        unserved = [each.unserved for each in externals() if queue.name in settings.external_queues]
        return Coloured(unserved[0] if unserved else "no worker serves it", RED) if queue.now.queued else ""
    late = sum(worker.state == "late" for worker in queue.workers)
    return Coloured(f"{late} of its workers late", YELLOW) if late else ""
