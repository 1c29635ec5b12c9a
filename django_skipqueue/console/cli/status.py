"""`skipqueue status`: show the queues, the workers and the jobs, once or repeatedly.

Every count stops at a maximum, so counting ten million jobs takes no longer than counting a thousand jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import translation

from ...events.log_format import in_words, printable
from ...models import WAITING, Status
from ...queue.store import Store
from ...values.fact import Fact
from ..counts import Count
from ..facts import Renderers, as_json, plain
from ..job_states import RETRYING, Indexed, ScheduledCounts
from ..parts import PartStatus, consoles
from ..periods import Period
from ..queues_and_workers import QUEUE, QueueState, Workforce, active_queues, queue_facts, queue_states
from ..rules.verdict import Verdict
from .facts import FactList, print_facts
from .subcommand import Exit, Watchable
from .terminal import RED, YELLOW, Coloured, Console, shown_time
from .verdict import show_verdict

FAILED_IN_LAST_HOUR = "failed_in_last_hour"

OUTSIDE_QUEUES = [*(status for status in WAITING if status not in (Status.SCHEDULED, Status.QUEUED)), Status.FAILED]
"""Statuses that are counted for all queues together. Retries are counted apart, so `scheduled` is not among them."""


@dataclass(frozen=True)
class Snapshot:
    verdict: Verdict
    at: datetime
    """The time on the database's clock."""
    queues: list[QueueState]
    """The queues that have jobs, have a rate, or are paused, sorted by name."""
    jobs: dict[str, Count]
    """The number of jobs that are in no queue, by state: scheduled, retrying, blocked and failed."""
    workforce: Workforce
    parts: list[PartStatus]

    @classmethod
    def now(cls) -> "Snapshot":
        store = Store.default()
        with translation.override(None):
            verdict = Verdict.now(store)
        at, _heartbeats = store.heartbeats()
        workforce = Workforce.now()
        queues = sorted(active_queues(None, workforce), key=lambda queue: queue.name)
        parts = [part.status(store) for part in consoles() if part.status]
        scheduled = ScheduledCounts.now()
        jobs = {
            Status.SCHEDULED.value: scheduled.first,
            RETRYING: scheduled.retrying,
            **{status.value: Indexed(status).count() for status in OUTSIDE_QUEUES},
            FAILED_IN_LAST_HOUR: Indexed(Status.FAILED, period=Period(timedelta(hours=1))).count(),
        }
        return cls(verdict, at, queues, jobs, workforce, parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.as_json(),
            "at": self.at,
            "queues": [as_json(QUEUE, queue) for queue in self.queues],
            "jobs": {name: plain(count) for name, count in self.jobs.items()},
            **{name: value for part in self.parts for name, value in part.as_json.items()},
            "workers": self.workforce.by_state,
        }


def in_full(count: Count) -> str:
    """Return the count as text for a sentence: `at least 5,001`, `more than 10,000`."""
    if count.found > count.cap:
        return f"more than {count.shown:,}"
    return f"{'at least ' if count.is_lower_bound else ''}{count.shown:,}"


class ShowStatus(Watchable):
    name = "status"
    help = "Show the queues, the workers, and how many jobs wait and have failed"

    def run(self, console: Console, **options: Any) -> Exit:
        _show(console, Snapshot.now(), in_json=options["json"])
        return Exit.DONE


def _show(console: Console, snapshot: Snapshot, *, in_json: bool) -> None:
    if in_json:
        console.json(snapshot.as_json())
        return
    show_verdict(console, snapshot.verdict)
    console.line(shown_time(snapshot.at))
    console.line()
    print_facts(console, QUEUE, snapshot.queues, QUEUE_RENDERERS)
    if not snapshot.queues:
        console.line("No job is queued or running, and none has ended lately.")
    console.line()
    jobs = snapshot.jobs
    failed_in_last_hour = in_full(jobs[FAILED_IN_LAST_HOUR])
    count_texts = [f"{in_full(count)} {name}" for name, count in jobs.items() if name != FAILED_IN_LAST_HOUR]
    console.line(f"Jobs: {', '.join(count_texts)} ({failed_in_last_hour} in the last hour).")
    late_workers = [
        f"{worker.name} {worker.state} for {in_words(worker.age.total_seconds())}"
        for worker in snapshot.workforce.late_or_stale[:5]
    ]
    counts_by_state = ", ".join(f"{count} {state}" for state, count in snapshot.workforce.by_state.items())
    late_workers_text = f" ({', '.join(late_workers)})" if late_workers else ""
    console.line(printable(f"Workers: {counts_by_state}{late_workers_text}."))
    for part in snapshot.parts:
        for line in part.lines:
            console.line(printable(line))


def _queued_text(queue: QueueState) -> str:
    return f"{'about ' if queue.now.is_estimate else ''}{queue.now.queued:,}"


def _note_text(queue: QueueState) -> str:
    if pause := queue.pause:
        until = f"until {shown_time(pause.paused_until)}" if pause.paused_until else "until it is resumed"
        by_text = f" by {pause.paused_by}" if pause.paused_by else ""
        reason_text = f": {pause.reason}" if pause.reason else ""
        return Coloured(f"paused {until}{by_text}{reason_text}", YELLOW)
    return Coloured(queue.note, YELLOW if queue.workers else RED)


QUEUE_RENDERERS: Renderers[QueueState] = {"queued": _queued_text, "note": _note_text}


class Queues(FactList[QueueState]):
    """The queues that have jobs, tasks, workers or settings."""

    name = "queues"
    help = "List the known queues with their jobs, workers, pauses and limits"
    json_help = "print a JSON object for each queue"
    nothing = "No queue has jobs, tasks or workers."

    def facts(self) -> Sequence[Fact[QueueState]]:
        return queue_facts()

    def renderers(self) -> Renderers[QueueState]:
        return QUEUE_RENDERERS

    def read(self, **options: Any) -> list[QueueState]:
        return queue_states()
