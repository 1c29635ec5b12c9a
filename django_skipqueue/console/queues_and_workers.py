"""What operators see of queues and workers: what waits and runs, which workers are alive, and what is paused.

A queue is only a name, and no table lists all queues. A queue is known if it has jobs, tasks, workers, a limit or a
pause. A worker is alive if its last heartbeat is recent, by the database's clock.

Only a few index lookups and a few rows of workers are read, however many jobs there are.
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
"""At most this many workers are read."""


def state_after(age: timedelta) -> State:
    """Return a worker's state by the age of its heartbeat: `late` after two missed heartbeats, `stale` if dead."""
    interval = min(settings.heartbeat_interval, settings.worker_timeout / 4)
    if age >= timedelta(seconds=settings.worker_timeout):
        return "stale"
    return "late" if age >= timedelta(seconds=2.5 * interval) else "live"


@dataclass(frozen=True)
class WorkerHealth:
    id: str
    name: str
    queues: tuple[str, ...]
    """The queues that it serves; empty if it serves all queues."""
    slots: int
    """How many jobs it runs at once; 0 if it hands its jobs over to an external system."""
    age: timedelta
    """The time since its last heartbeat."""

    @property
    def state(self) -> State:
        return state_after(self.age)

    @property
    def is_live(self) -> bool:
        return self.state != "stale"

    def serves(self, queue_name: str) -> bool:
        return serves(self.queues, queue_name, external=settings.external_queues)


EVERYBODY = Q()
"""A condition that every worker meets."""


@dataclass(frozen=True)
class Workforce:
    """All workers at one moment. Processes without slots are included, the rows of external systems are not."""

    workers: tuple[WorkerHealth, ...]

    @classmethod
    def now(cls, condition: Q = EVERYBODY, *, using: str | None = None) -> "Workforce":
        """Read the workers that meet this condition, in the database `using` (default: the setting's database).

        The workers with the latest heartbeats come first.
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
        """How many workers are live, late and stale. Workers without slots do not count."""
        states = [worker.state for worker in self.workers if worker.slots]
        return {state: states.count(state) for state in WORKER_STATES}

    @property
    def late_or_stale(self) -> list[WorkerHealth]:
        not_live = (worker for worker in self.workers if worker.state != "live")
        return sorted(not_live, key=lambda worker: worker.age)

    def serving(self, queue_name: str) -> list[WorkerHealth]:
        return [worker for worker in self.not_dead if worker.serves(queue_name)]

    def unserved(self, queue_names: Iterable[str]) -> list[str]:
        """Return the queues without a live worker. Queues of external systems are left out."""
        return [name for name in queue_names if name not in settings.external_queues and not self.serving(name)]

    def get(self, worker_id: str) -> WorkerHealth | None:
        return next((worker for worker in self.workers if worker.id == worker_id), None)


def recovered(workforce: Workforce, *, using: str | None = None) -> list[WorkerHealth]:
    """Return dead workers that need no action, because they hold no job and another worker is live. Index: recover."""
    dead_workers = [worker for worker in workforce.workers if not worker.is_live]
    if not dead_workers or not any(worker.state == "live" for worker in workforce.workers):
        return []
    held_jobs = Job.objects.db_manager(using).running().filter(locked_by__in=[worker.id for worker in dead_workers])
    holder_ids = set(held_jobs.values_list("locked_by", flat=True).distinct())
    return [worker for worker in dead_workers if worker.id not in holder_ids]


def not_external(jobs: Any) -> Any:
    """Leave out jobs of an external system, because their rows do not say how long the jobs wait and run there."""
    return jobs.exclude(locked_by__in=Worker._base_manager.filter(is_external=True).values("id"))


# Sent by pages, commands, metrics. Reads the `limit` oldest blocked jobs, and returns how many of them are in each
# queue. Index: blocked.
BLOCKED_BY_QUEUE = """
SELECT queue_name, count(*)
FROM (
    SELECT queue_name FROM skipqueue_job WHERE status = 'blocked' ORDER BY id LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# Sent by metrics, if there are more blocked jobs than `BLOCKED_BY_QUEUE` reads. Returns PostgreSQL's estimate of the
# number of blocked jobs. Reads no row.
EXPECTED_BLOCKED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'blocked'
"""


def blocked_now(store: Store) -> tuple[dict[str, int], bool]:
    """Return the number of blocked jobs by queue, and whether there are more than were counted."""
    queues = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": MOST_BLOCKED + 1}))
    return queues, sum(queues.values()) > MOST_BLOCKED


def estimated_blocked(store: Store, *, most: int) -> dict[str, int]:
    """Return the number of blocked jobs by queue. If there are more than `most` jobs, the numbers are estimates."""
    counts = dict(store.rows(BLOCKED_BY_QUEUE, {"limit": most}))
    if sum(counts.values()) < most:
        return counts
    return raised(counts, store.expected_rows(EXPECTED_BLOCKED))


MOST_QUEUES_LISTED = 500
"""At most this many queues are listed."""

MOST_PAUSED_READ = 1_000
"""At most this many paused queues are read."""


class QueueRate(NamedTuple):
    per_minute: float
    """How many jobs ended per minute: completed, failed or discarded."""
    waited: list[int]
    """The histogram of the waiting times, from when a job was due to the start of an attempt."""
    longest: float | None = None
    """The longest waiting time in seconds; `None` if unknown."""

    @property
    def p95_wait(self) -> float | None:
        """95 % of the attempts waited at most this many seconds; `None` without attempts."""
        return quantile(self.waited, 0.95, self.longest)


def rates_now(store: Store) -> dict[str, QueueRate]:
    """Return the throughput of queues in which jobs have ended recently, by name; an empty name means all queues."""
    return {name: rate for part in consoles() if part.queue_rates for name, rate in part.queue_rates(store).items()}


@dataclass(frozen=True)
class QueueState:
    now: QueueNow
    """The queue's queued and running jobs."""
    workers: Sequence[WorkerHealth] = ()
    """The live workers that serve the queue."""
    pause: Queue | None = None
    """The queue's row if it is paused."""
    rate: QueueRate | None = None
    """The throughput of the last minutes; `None` if no part measures it."""
    blocked: Count = field(default_factory=lambda: Count(0))
    """How many of its jobs wait for other jobs, or for a limit."""
    settings: Mapping[str, QueueSetting[Any]] = field(default_factory=dict)
    """The queue's settings, by the option's name."""

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
        """A text if no worker serves the queue although jobs wait, or if some of its workers are late."""
        if not self.workers and self.now.queued:
            unserved = [external.unserved for external in externals() if self.name in settings.external_queues]
            return unserved[0] if unserved else gettext("no worker serves it")
        late = sum(worker.state == "late" for worker in self.workers)
        return gettext("%(number)s of its workers late") % {"number": late} if late else ""


_LABELS = ("queue",)
QUEUED = Metric(
    "skipqueue_queued_jobs", "gauge", "Jobs that wait for a worker; a large number is an estimate.", _LABELS
)
OLDEST = Metric("skipqueue_oldest_queued_seconds", "gauge", "Seconds since the oldest queued job was due.", _LABELS)
BLOCKED = Metric(
    "skipqueue_blocked_jobs", "gauge", "Jobs that wait for other jobs or for a limit; above 2,000 an estimate.", _LABELS
)
RUNNING_JOBS = Metric(
    "skipqueue_running_jobs", "gauge", "Jobs that run, or are claimed; an estimate above 2,000.", _LABELS
)
LONGEST = Metric(
    "skipqueue_longest_running_seconds", "gauge", "Seconds since the oldest running job was claimed.", _LABELS
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
"""The facts about one queue. `queue_facts` adds the options that operators can set."""


def queue_facts() -> tuple[Fact[QueueState], ...]:
    """Return the facts about a queue, including the options that operators can set."""
    return (*QUEUE[:-1], *(option.fact for option in queue_options()), QUEUE[-1])


def queue_states(rates: Mapping[str, QueueRate] | None = None, workforce: Workforce | None = None) -> list[QueueState]:
    """Return the known queues, at most `MOST_QUEUES_LISTED`: paused queues first, then queues with jobs.

    `rates`: a result of `rates_now`. If `rates` or `workforce` is not given, it is read.
    """
    workforce = Workforce.now() if workforce is None else workforce
    options = {option.name: option.of_all() for option in queue_options()}
    other_names = {task.options.queue_name for task in registry}.union(*options.values())
    other_names.update(*(worker.queues for worker in workforce.not_dead))
    return [
        replace(
            queue,
            settings={
                name: settings_by_queue[queue.name]
                for name, settings_by_queue in options.items()
                if queue.name in settings_by_queue
            },
        )
        for queue in active_queues(rates, workforce, others=other_names, most=MOST_QUEUES_LISTED)
    ]


def active_queues(
    rates: Mapping[str, QueueRate] | None, workforce: Workforce, *, others: Iterable[str] = (), most: int | None = None
) -> list[QueueState]:
    """Return paused queues, queues with jobs or a throughput, and the `others`, without their `settings`."""
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
    """Format the end of a pause, to the minute, in the current time zone."""
    return date_format(localtime(time), "Y-m-d H:i T")


MOST_NAMES_OFFERED = 1_000
"""The names in this many of the newest jobs, and in this many failed jobs, are offered."""

MAX_LINKED_NAME_LENGTH = 200
"""Longer names are not offered as links, because a thousand of them would fill the page."""


def known_queue_names() -> list[str]:
    names = {*Store.default().queues_with_jobs(with_paused=True), *(task.options.queue_name for task in registry)}
    for names_of_worker in Worker.objects.values_list("queues", flat=True):
        names.update(names_of_worker)
    names.update(_sample("queue_name"))
    return sorted(name for name in names if len(name) <= MAX_LINKED_NAME_LENGTH)


def known_task_names() -> list[str]:
    return sorted({*(task.name for task in registry if not task.is_internal), *_sample("task")})


def _sample(column: str) -> set[str]:
    """Return the values of this column in the newest jobs, and in the jobs that failed last."""
    name = Left(column, MAX_LINKED_NAME_LENGTH + 1)
    newest = Job.objects.order_by("-id").values_list(name, flat=True)[:MOST_NAMES_OFFERED]
    failed = Job.objects.failed().order_by("-finished_at").values_list(name, flat=True)[:MOST_NAMES_OFFERED]
    return {name for name in newest.union(failed, all=True) if len(name) <= MAX_LINKED_NAME_LENGTH}
