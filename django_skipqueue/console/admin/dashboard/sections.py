"""The sections below the cards, such as the jobs that run for the longest time.

A further section is a function of a `Situation`, a template, and a line in `SECTIONS`. Those of a part are in its
console. Only jobs that run now are among the longest ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now
from django.urls import reverse

from ....models import Job
from ....values.records import worker_name
from ...durations import span
from ...parts import PartSection, consoles
from ...queues_and_workers import not_external
from ..queues.columns import columns_for
from .situation import Situation

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
    """Query the jobs that workers run. How long one has run elsewhere, nobody here knows. Index: recover."""
    running: Any = not_external(Job.objects.running()).annotate(now=Now()).order_by("locked_at")
    if situation.queue_name:
        running = running.filter(queue_name=situation.queue_name)
    columns = ("id", "task", "queue_name", "locked_at", "locked_by", "now")
    return [
        LongJob(id, task, queue_name, span(now - locked_at), worker_name(locked_by or ""))
        for id, task, queue_name, locked_at, locked_by, now in running.values_list(*columns)[:MOST]
    ]


MOST_QUEUES = 10


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


SECTIONS = (
    Section("queues", _queues),
    Section("longest_jobs", longest_jobs),
)
"""In the order of the page."""


def sections() -> Iterator[Section | PartSection]:
    """The sections, each with those of parts that stand after it."""
    of_parts = [section for part in consoles() for section in part.sections]
    yield from (each for each in of_parts if not each.after)
    for section in SECTIONS:
        yield section
        yield from (each for each in of_parts if each.after == section.name)
