"""The sections below the cards, such as the jobs that run for the longest time, and the slowest tasks.

A further section is a function of a `Situation`, a template, and a line in `SECTIONS`. Those of a part are in its
console. Only jobs that run now are among the longest ones. The slowest tasks are those of the chosen time, by their
roll-ups.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now
from django.urls import reverse
from django.utils.formats import number_format
from django.utils.http import urlencode

from ....models import Job
from ....parts.batches.admin import ON_DASHBOARD as BATCH_COLUMNS
from ....parts.batches.states import batches_with_failures, running_batches
from ....parts.history.models import Span
from ....parts.limits.admin import COLUMNS as OF_LIMITS
from ....parts.limits.states import first_states
from ....parts.schedules.admin import ON_DASHBOARD
from ....parts.schedules.states import first_schedules
from ....values import counting
from ....values.records import worker_name
from ...counts import grouped
from ...durations import span
from ...parts import PartSection, consoles
from ...worker_health import not_carried
from ..queues.columns import columns_for
from ..ui.columns import rows
from . import sql
from .charts import charts
from .situation import HOUR, Situation

MOST = 5


@dataclass(frozen=True)
class LongJob:
    id: int
    task: str
    queue_name: str
    ran: str
    """For how long, as text."""
    worker: str

    @property
    def address(self) -> str:
        return reverse("admin:django_skipqueue_job_change", args=[self.id])


def longest_jobs(situation: Situation) -> list[LongJob]:
    """Query the jobs that workers run. How long one has run with a carrier, nobody here knows. Index: recover."""
    running: Any = not_carried(Job.objects.running()).annotate(now=Now()).order_by("locked_at")
    if situation.queue_name:
        running = running.filter(queue_name=situation.queue_name)
    columns = ("id", "task", "queue_name", "locked_at", "locked_by", "now")
    return [
        LongJob(id, task, queue_name, span(now - locked_at), worker_name(locked_by or ""))
        for id, task, queue_name, locked_at, locked_by, now in running.values_list(*columns)[:MOST]
    ]


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
        SlowTask(task, queue_name, int(number), int(failed), mean, counting.quantile(_histogram(ran), 0.95) or 0.0)
        for task, queue_name, number, failed, mean, ran in rows
    ]
    return sorted(found, key=lambda each: each.p95, reverse=True)[:MOST_SHOWN]


def _histogram(filled: Iterable[tuple[Any, Any]]) -> list[int]:
    counts = counting.full(())
    for place, number in filled:
        counts[int(place) - 1] = int(number)
    return counts


MOST_QUEUES = 10
MOST_SCHEDULES = 5
MOST_BATCHES = 5
MOST_KEYS = 10


@dataclass(frozen=True)
class Section:
    name: str
    """Of its template, `admin/django_skipqueue/dashboard/NAME.html`."""
    content: Callable[[Situation], Any]

    @property
    def template(self) -> str:
        return f"admin/django_skipqueue/dashboard/{self.name}.html"


def _queues(situation: Situation) -> dict[str, Any]:
    shown = situation.queues[:MOST_QUEUES]
    columns = columns_for(shown)
    return {
        "columns": columns,
        "rows": [[(column, column.cell(queue)) for column in columns] for queue in shown],
        "hidden": len(situation.queues) - len(shown),
    }


def _schedules(_: Situation) -> dict[str, Any]:
    """The schedules that need attention, then the schedules that fire next."""
    found = first_schedules(MOST_SCHEDULES)
    return {
        "columns": ON_DASHBOARD,
        "rows": [[(column, column.cell(each)) for column in ON_DASHBOARD] for each in found.states],
        "hidden": found.others,
    }


def _limits(situation: Situation) -> dict[str, Any]:
    """The halted sequences, then the keys whose jobs have waited for the longest."""
    return {"columns": OF_LIMITS, "rows": rows(OF_LIMITS, first_states(situation.store, most=MOST_KEYS))}


def _batches(_: Situation) -> dict[str, Any]:
    """The batches that run, then the batches that ended with failures; of each the newest."""
    found = [*running_batches(MOST_BATCHES), *batches_with_failures(MOST_BATCHES)]
    return {
        "columns": BATCH_COLUMNS,
        "rows": [[(column, column.cell(each)) for column in BATCH_COLUMNS] for each in found],
    }


SECTIONS = (
    Section("charts", charts),
    Section("queues", _queues),
    Section("limits", _limits),
    Section("schedules", _schedules),
    Section("batches", _batches),
    Section("longest_jobs", longest_jobs),
    Section("slowest_tasks", slowest_tasks),
)
"""In the order of the page."""


def sections() -> Iterator[Section | PartSection]:
    """The sections, each with those of parts that stand after it."""
    of_parts = [section for part in consoles() for section in part.sections]
    for section in SECTIONS:
        yield section
        yield from (each for each in of_parts if each.after == section.name)
