"""Which workers are alive, by the age of their heartbeats on the database's clock. One query, of a few rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models.functions import Now
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..models import Job, Worker
from ..values.records import serves
from .durations import span

State = Literal["live", "late", "stale"]

STATES: dict[State, str | Promise] = {"live": _("live"), "late": _("late"), "stale": _("stale")}
"""The label of each state."""

MOST = 1_000
"""The maximum of workers that are read."""


def state_after(age: timedelta) -> State:
    """The state of a worker by the age of its heartbeat: `late` after two missed ones, `stale` if it counts as dead."""
    interval = min(settings.heartbeat_interval, settings.worker_timeout / 4)
    if age >= timedelta(seconds=settings.worker_timeout):
        return "stale"
    return "late" if age >= timedelta(seconds=2.5 * interval) else "live"


@dataclass(frozen=True)
class WorkerHealth:
    id: str
    name: str
    queues: tuple[str, ...]
    """Empty: it serves all."""
    slots: int
    """How many jobs it runs at once; 0: it hands those that it claims on."""
    age: timedelta
    """Since its last heartbeat."""

    @property
    def state(self) -> State:
        return state_after(self.age)

    @property
    def is_live(self) -> bool:
        return self.state != "stale"

    @property
    def age_in_words(self) -> str:
        return span(self.age)

    def serves(self, queue_name: str) -> bool:
        return serves(self.queues, queue_name, external=settings.external_queues)


@dataclass(frozen=True)
class Workforce:
    """All workers, at one moment: those without slots among them, and nobody external."""

    workers: tuple[WorkerHealth, ...]

    @classmethod
    def now(cls, *, using: str | None = None) -> "Workforce":
        """As the rows are now, in the database `using`; default: that of the setting."""
        return cls(tuple(_read(using)))

    @property
    def not_dead(self) -> list[WorkerHealth]:
        return [worker for worker in self.workers if worker.is_live]

    @property
    def runners(self) -> list[WorkerHealth]:
        return [worker for worker in self.not_dead if worker.slots]

    @property
    def by_state(self) -> dict[str, int]:
        """The numbers of live, late and stale workers. Those without slots are not among them."""
        states = [worker.state for worker in self.workers if worker.slots]
        return {state: states.count(state) for state in STATES}

    @property
    def late_or_stale(self) -> list[WorkerHealth]:
        found = (worker for worker in self.workers if worker.state != "live")
        return sorted(found, key=lambda worker: worker.age)

    def serving(self, queue_name: str) -> list[WorkerHealth]:
        return [worker for worker in self.not_dead if worker.serves(queue_name)]

    def get(self, worker_id: str) -> WorkerHealth | None:
        return next((worker for worker in self.workers if worker.id == worker_id), None)


def recovered(workforce: Workforce, *, using: str | None = None) -> list[WorkerHealth]:
    """The dead workers that need nobody: another worker is live, and they hold no running job. Index: recover."""
    dead = [worker for worker in workforce.workers if not worker.is_live]
    if not dead or not any(worker.state == "live" for worker in workforce.workers):
        return []
    held = Job.objects.db_manager(using).running().filter(locked_by__in=[worker.id for worker in dead])
    holders = set(held.values_list("locked_by", flat=True).distinct())
    return [worker for worker in dead if worker.id not in holders]


def not_external(jobs: Any) -> Any:
    """Of these jobs, those that a worker holds: how long one waits and runs elsewhere, its row does not say."""
    return jobs.exclude(locked_by__in=Worker._base_manager.filter(is_external=True).values("id"))


def _read(using: str | None) -> Iterator[WorkerHealth]:
    rows = Worker.objects.db_manager(using).filter(is_external=False).annotate(now=Now()).order_by("-heartbeat_at")
    columns = ("id", "name", "queues", "concurrency", "heartbeat_at", "now")
    heartbeat: datetime
    now: datetime
    for worker_id, name, queues, slots, heartbeat, now in rows.values_list(*columns)[:MOST]:
        yield WorkerHealth(str(worker_id), name, tuple(map(str, queues)), slots, now - heartbeat)
