"""The jobs that have run for the longest time, of those that run now."""

from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now
from django.urls import reverse

from ...models import Job
from ...operators.durations import span
from ...operators.worker_health import not_carried
from ...values.records import worker_name
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
    """Query the jobs that workers run. How long one has run with a carrier, nobody here knows. Index: recover."""
    running: Any = not_carried(Job.objects.running()).annotate(now=Now()).order_by("locked_at")
    if situation.queue_name:
        running = running.filter(queue_name=situation.queue_name)
    columns = ("id", "task", "queue_name", "locked_at", "locked_by", "now")
    return [
        LongJob(id, task, queue_name, span(now - locked_at), worker_name(locked_by or ""))
        for id, task, queue_name, locked_at, locked_by, now in running.values_list(*columns)[:MOST]
    ]
