"""The queues and the workers as operators see them: what waits and runs, who serves it, who is alive, what is paused.

A queue is a name: no table has all queues. The known queues have jobs, tasks, workers, a limit or a pause. A worker is
alive if its last heartbeat is young, by the database's clock.

Invariant: a few probes of indexes and a few rows of workers are read, whatever the number of jobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from django.db.models import F, Q
from django.db.models.functions import Left, Now
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..jobs.registry import registry
from ..models import Job, Queue, Worker
from ..queue.observe import QueueNow, queues_now, raised
from ..queue.store import Store
from ..values.codec import shorten
from ..values.counting import quantile
from ..values.exposition import Metric
from ..values.fact import Fact
from ..values.records import serves
from .counts import MOST_BLOCKED, Count
from .parts import QueueSetting, consoles, externals, queue_options

State = Literal["live", "late", "stale"]

WORKER_STATES: dict[State, str | Promise] = {"live": _("live"), "late": _("late"), "stale": _("stale")}
"""The label of each state."""

MOST_WORKERS_READ = 1_000
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
    """How many jobs it runs at once; 0: it hands its jobs on to processes outside of the workers."""
    age: timedelta
    """Since its last heartbeat."""

    @property
    def state(self) -> State:
        return state_after(self.age)

    @property
    def is_live(self) -> bool:
        return self.state != "stale"

    def serves(self, queue_name: str) -> bool:
        return serves(self.queues, queue_name, external=settings.external_queues)


EVERYBODY = Q()


@dataclass(frozen=True)
class Workforce:
    """All workers at one moment, also the workers without slots; without the rows that are external."""

    workers: tuple[WorkerHealth, ...]

    @classmethod
    def now(cls, condition: Q = EVERYBODY, *, using: str | None = None) -> "Workforce":
        """The workers on this condition now, in the database `using` (default: the database of the setting).

        The workers with the youngest heartbeats come first.
        """
        rows = Worker.objects.db_manager(using).filter(condition, is_external=False).order_by("-heartbeat_at")
        columns = rows.annotate(age=Now() - F("heartbeat_at")).values_list("id", "name", "queues", "concurrency", "age")
        return cls(
            tuple(
                WorkerHealth(str(worker_id), name, tuple(map(str, queues)), slots, age)
                for worker_id, name, queues, slots, age in columns[:MOST_WORKERS_READ]
            )
        )

    @property
    def not_dead(self) -> list[WorkerHealth]:
        return [worker for worker in self.workers if worker.is_live]

    @property
    def runners(self) -> list[WorkerHealth]:
        return [worker for worker in self.not_dead if worker.slots]

    @property
    def by_state(self) -> dict[str, int]:
        """The numbers of live, late and stale workers. Workers without slots do not count."""
        states = [worker.state for worker in self.workers if worker.slots]
        return {state: states.count(state) for state in WORKER_STATES}

    @property
    def late_or_stale(self) -> list[WorkerHealth]:
        found = (worker for worker in self.workers if worker.state != "live")
        return sorted(found, key=lambda worker: worker.age)

    def serving(self, queue_name: str) -> list[WorkerHealth]:
        return [worker for worker in self.not_dead if worker.serves(queue_name)]

    def unserved(self, queue_names: Iterable[str]) -> list[str]:
        """The queues among these that no live worker serves. Queues that run outside of the workers are left out."""
        return [name for name in queue_names if name not in settings.external_queues and not self.serving(name)]

    def get(self, worker_id: str) -> WorkerHealth | None:
        return next((worker for worker in self.workers if worker.id == worker_id), None)


def recovered(workforce: Workforce, *, using: str | None = None) -> list[WorkerHealth]:
    """The dead workers that hold no running job, if another worker is live: nothing has to be done. Index: recover."""
    dead = [worker for worker in workforce.workers if not worker.is_live]
    if not dead or not any(worker.state == "live" for worker in workforce.workers):
        return []
    held = Job.objects.db_manager(using).running().filter(locked_by__in=[worker.id for worker in dead])
    holders = set(held.values_list("locked_by", flat=True).distinct())
    return [worker for worker in dead if worker.id not in holders]


def not_external(jobs: Any) -> Any:
    """The jobs among these that a worker holds. A row does not say how long its job waits and runs elsewhere."""
    return jobs.exclude(locked_by__in=Worker._base_manager.filter(is_external=True).values("id"))


# pages, commands, metrics → the number of blocked jobs by queue, among the `limit` blocked jobs that were enqueued
# first. Index: blocked.
BLOCKED_BY_QUEUE = """
SELECT queue_name, count(*)
FROM (
    SELECT queue_name FROM skipqueue_job WHERE status = 'blocked' ORDER BY id LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# metrics, where more jobs are blocked than `BLOCKED_BY_QUEUE` reads → how many the planner expects. Reads no row.
EXPECTED_BLOCKED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'blocked'
"""


def blocked_now(store: Store) -> tuple[dict[str, int], bool]:
    """The number of blocked jobs by queue, and whether there are more blocked jobs than were counted."""
    queues = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": MOST_BLOCKED + 1}))
    return queues, sum(queues.values()) > MOST_BLOCKED


def estimated_blocked(store: Store, *, most: int) -> dict[str, int]:
    """The number of blocked jobs of each queue that has any. If there are more than `most` jobs, it is estimated."""
    counts = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": most}))
    if sum(counts.values()) < most:
        return counts
    return raised(counts, store.expected_rows(EXPECTED_BLOCKED))


MOST_QUEUES_LISTED = 500
"""The maximum of queues in a list."""

MOST_PAUSED_READ = 1_000
"""Paused queues that are read."""


class QueueRate(NamedTuple):
    per_minute: float
    """Jobs that ended: completed, failed or discarded."""
    waited: list[int]
    """The histogram of the times from the due time to the start of an attempt."""
    longest: float | None = None
    """The longest wait in seconds; `None`: it is not known."""

    @property
    def p95_wait(self) -> float | None:
        """The seconds that 95 % of the attempts have waited at most; `None` without attempts."""
        return quantile(self.waited, 0.95, self.longest)


def rates_now(store: Store) -> dict[str, QueueRate]:
    """The rates of the queues in which jobs have ended lately, by name; an empty name: of all queues together."""
    return {name: rate for part in consoles() if part.queue_rates for name, rate in part.queue_rates(store).items()}


@dataclass(frozen=True)
class QueueState:
    now: QueueNow
    """Its queued and running jobs."""
    workers: Sequence[WorkerHealth] = ()
    """The workers that serve it and do not count as dead."""
    pause: Queue | None = None
    """Its row, if it is paused."""
    rate: QueueRate | None = None
    """Of the last minutes; `None` if no part knows rates."""
    blocked: Count = field(default_factory=lambda: Count(0))
    """Its jobs that wait for other jobs, or for a permit."""
    settings: Mapping[str, QueueSetting[Any]] = field(default_factory=dict)
    """The settings that the queue has, by the names of the options."""

    @property
    def name(self) -> str:
        return self.now.name

    @property
    def per_minute(self) -> float | None:
        return self.rate and self.rate.per_minute

    @property
    def p95_wait(self) -> float | None:
        return self.rate and self.rate.p95_wait

    @property
    def note(self) -> str:
        """What is wrong with its workers: jobs wait and nobody serves it, or some are late."""
        if not self.workers and self.now.queued:
            unserved = [each.unserved for each in externals() if self.name in settings.external_queues]
            return unserved[0] if unserved else gettext("no worker serves it")
        late = sum(worker.state == "late" for worker in self.workers)
        return gettext("%(number)s of its workers late") % {"number": late} if late else ""


_LABELS = ("queue",)
QUEUED = Metric("skipqueue_queued_jobs", "gauge", "Jobs that wait for a worker; many are estimated.", _LABELS)
OLDEST = Metric("skipqueue_oldest_queued_seconds", "gauge", "Seconds since the oldest queued job was due.", _LABELS)
BLOCKED = Metric(
    "skipqueue_blocked_jobs", "gauge", "Jobs that wait for other jobs, or a permit; an estimate above 2,000.", _LABELS
)
RUNNING_JOBS = Metric(
    "skipqueue_running_jobs", "gauge", "Jobs that run, or are claimed; an estimate above 2,000.", _LABELS
)
LONGEST = Metric(
    "skipqueue_longest_running_seconds", "gauge", "Seconds since the first of the running jobs was claimed.", _LABELS
)
IS_PAUSED = Metric("skipqueue_queue_paused", "gauge", "1 for each queue that is paused.", _LABELS)

QUEUE: tuple[Fact[QueueState], ...] = (
    Fact("queue", _("queue"), lambda queue: queue.name),
    Fact("queued", _("queued"), lambda queue: queue.now.queued, "jobs", metric=QUEUED),
    Fact("is_estimate", "", lambda queue: queue.now.is_estimate),
    Fact("oldest", _("oldest job"), lambda queue: queue.now.oldest, "seconds", "oldest_seconds", metric=OLDEST),
    Fact("blocked", _("blocked"), lambda queue: queue.blocked, "jobs", is_optional=True, metric=BLOCKED),
    Fact("running", _("running"), lambda queue: queue.now.running, "jobs", metric=RUNNING_JOBS),
    Fact("longest", _("longest"), lambda queue: queue.now.longest, "seconds", "longest_seconds", metric=LONGEST),
    Fact("rate", _("jobs/min"), lambda queue: queue.per_minute, "jobs per minute", "jobs_per_minute", is_optional=True),
    Fact("waited", _("waited (p95)"), lambda queue: queue.p95_wait, "seconds", "p95_wait_seconds", is_optional=True),
    Fact("workers", _("workers"), lambda queue: len(queue.workers), "jobs"),
    Fact("slots", "", lambda queue: sum(worker.slots for worker in queue.workers)),
    Fact("is_paused", "", lambda queue: queue.pause is not None, metric=IS_PAUSED),
    Fact("paused_until", "", lambda queue: queue.pause and queue.pause.paused_until),
    Fact("note", _("note"), lambda queue: queue.note, field=None),
)
"""The facts of a queue. What operators may set for it comes from parts: see `queue_facts`."""


def queue_facts() -> tuple[Fact[QueueState], ...]:
    """The facts of a queue, with the options that parts let operators set."""
    return (*QUEUE[:-1], *(option.fact for option in queue_options()), QUEUE[-1])


def queue_states(rates: Mapping[str, QueueRate] | None = None, workforce: Workforce | None = None) -> list[QueueState]:
    """The known queues, at most `MOST_QUEUES_LISTED`: the paused queues, then the queues with jobs, then others.

    `rates`: what `rates_now` returns. Queries the rates and the `workforce` unless they are given.
    """
    workforce = Workforce.now() if workforce is None else workforce
    options = {option.name: option.of_all() for option in queue_options()}
    others = {task.options.queue_name for task in registry}.union(*options.values())
    others.update(*(worker.queues for worker in workforce.not_dead))
    return [
        replace(queue, settings={name: of[queue.name] for name, of in options.items() if queue.name in of})
        for queue in active_queues(rates, workforce, others=others, most=MOST_QUEUES_LISTED)
    ]


def active_queues(
    rates: Mapping[str, QueueRate] | None, workforce: Workforce, *, others: Iterable[str] = (), most: int | None = None
) -> list[QueueState]:
    """The paused queues, the queues with jobs, the queues with a rate, and the `others`. They have no `settings`."""
    rates = rates_now(Store.default()) if rates is None else rates
    busy = {queue.name: queue for queue in queues_now(Store.default())}
    paused = {queue.name: queue for queue in Queue.objects.paused().order_by("name")[:MOST_PAUSED_READ]}
    blocked, is_lower_bound = blocked_now(Store.default())
    unrated = QueueRate(0.0, []) if any(part.queue_rates for part in consoles()) else None
    names = dict.fromkeys([*paused, *busy, *sorted(blocked), *sorted({*rates, *others} - {""})])
    return [
        QueueState(
            busy.get(name, QueueNow(name)),
            workforce.serving(name),
            pause=paused.get(name),
            rate=rates.get(name, unrated),
            blocked=Count(blocked.get(name, 0), is_lower_bound, MOST_BLOCKED),
        )
        for name in list(names)[:most]
    ]


LONGEST_NAME_OF_PAUSE = 200


def pause_sentence(queue: Queue) -> str:
    values = {
        "queue": shorten(queue.name, LONGEST_NAME_OF_PAUSE),
        "by": shorten(queue.paused_by, LONGEST_NAME_OF_PAUSE),
    }
    if queue.paused_until:
        values["time"] = pause_end(queue.paused_until)
        text = gettext("The queue “%(queue)s” is paused until %(time)s")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until %(time)s")
    else:
        text = gettext("The queue “%(queue)s” is paused until it is resumed")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until it is resumed")
    return f"{text % values}: {queue.reason}" if queue.reason else f"{text % values}."


def pause_end(time: datetime) -> str:
    """The end of a pause, to the minute, in the time zone of the site."""
    return date_format(localtime(time), "Y-m-d H:i T")


MOST_NAMES_OFFERED = 1_000

MAX_LINKED_NAME_LENGTH = 200
"""Characters of the longest name that is offered. A thousand longer names would fill the page."""


def known_queue_names() -> list[str]:
    names = {*Store.default().queues_with_jobs(with_paused=True), *(task.options.queue_name for task in registry)}
    for served in Worker.objects.values_list("queues", flat=True):
        names.update(served)
    names.update(_sample("queue_name"))
    return sorted(name for name in names if len(name) <= MAX_LINKED_NAME_LENGTH)


def known_task_names() -> list[str]:
    return sorted({*(task.name for task in registry if not task.is_internal), *_sample("task")})


def _sample(column: str) -> set[str]:
    name = Left(column, MAX_LINKED_NAME_LENGTH + 1)
    newest = Job.objects.order_by("-id").values_list(name, flat=True)[:MOST_NAMES_OFFERED]
    failed = Job.objects.failed().order_by("-finished_at").values_list(name, flat=True)[:MOST_NAMES_OFFERED]
    return {name for name in newest.union(failed, all=True) if len(name) <= MAX_LINKED_NAME_LENGTH}
