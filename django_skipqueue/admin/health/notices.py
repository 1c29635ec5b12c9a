"""What an operator must see on every page: a queue without a worker, a task that holds every slot, a silent worker.

Invariant: the queries are bounded, whatever the tables' size, and a process asks them once in a few seconds.
"""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError, transaction
from django.db.models.functions import Now

from ...conf import settings
from ...events.log_format import printable
from ...models import Job
from ...models.expressions import CLAIM_ORDER
from ...store import Store
from ...store.columns import MAX_KEY_BYTES
from ...tasks.registry import registry
from ...values.codec import shorten
from ..ui.durations import span
from .worker_health import Hand, Workforce

MOST = 20
"""Queues that are named at once; once those are served, it is the next ones' turn."""

MOST_RUNNING = 5_000
"""Running jobs that are looked at."""

LONG = timedelta(minutes=1)
"""A job that runs for longer takes its slot away from the others."""

FRESH_SECONDS = 5.0
"""For so long a process says what it has seen, before it looks again."""


@dataclass(frozen=True)
class Banner:
    """Jobs wait, and nobody will run them."""

    queue_names: tuple[str, ...]
    """The queues that wait; empty where no worker is alive at all, so that any worker helps."""

    @classmethod
    def now(cls) -> "Banner | None":
        """What has to be said, by the database's clock; mostly nothing."""
        return cls.of(Workforce.now(), Store.default().queues_with_jobs())

    @classmethod
    def of(cls, workforce: Workforce, waiting: Sequence[str]) -> "Banner | None":
        """The same, where the workers and the queues with jobs to claim are known."""
        if not workforce.live:
            return cls(()) if waiting or _is_overdue() else None
        unserved = sorted(name for name in waiting if not workforce.serving(name))[:MOST]
        return cls(tuple(map(_printed, unserved))) if unserved else None

    @property
    def command(self) -> str:
        """What to type, for a POSIX shell."""
        command = ["python", "manage.py", "runworker"]
        if self.queue_names:
            command += ["--queues", ",".join(self.queue_names)]
        return shlex.join(command)


@dataclass(frozen=True)
class Jam:
    """Jobs wait, and jobs that run for long hold every slot of those who serve their queues."""

    queue_names: tuple[str, ...]
    slots: int
    task: str
    """The one that holds most of them."""
    longest: timedelta
    """For how long the first of the jobs has run."""
    waits: timedelta
    """For how long the next job of these queues has been due."""

    @property
    def longest_in_words(self) -> str:
        """How long that is."""
        return span(self.longest)

    @property
    def waits_in_words(self) -> str:
        """How long that is."""
        return span(self.waits)


@dataclass(frozen=True)
class Notices:
    """All that has to be said."""

    banner: Banner | None
    jams: tuple[Jam, ...]
    silent: tuple[Hand, ...]
    """The workers that are late, or taken for dead."""

    @classmethod
    def now(cls) -> "Notices":
        """What there is to say this moment."""
        workforce, waiting = Workforce.now(), Store.default().queues_with_jobs()
        jams = tuple(_jams(workforce, waiting[:MOST])) if waiting and workforce.live else ()
        return cls(Banner.of(workforce, waiting), jams, tuple(workforce.silent[:MOST]))


class _Lookout:
    """What this process has seen last."""

    def __init__(self) -> None:
        self._seen: tuple[str, float, Notices | None] = ("", 0.0, None)  # in which database, when, what

    def notices(self) -> Notices | None:
        """What there was to say at most a few seconds ago; nothing where the queue could not be asked.

        Two threads may look at once: they see the same.
        """
        database, now = settings.database, time.monotonic()
        seen_in, seen_at, notices = self._seen
        if seen_in != database or now - seen_at >= FRESH_SECONDS:
            notices = self._look(database)
            self._seen = (database, now, notices)
        return notices

    def forget(self) -> None:
        """Look again next time."""
        self._seen = ("", 0.0, None)

    def _look(self, database: str) -> Notices | None:
        """The admin's index works without the queue's tables, and without its database, as ever."""
        try:
            with transaction.atomic(using=database):  # an error stays within it
                return Notices.now()
        except DatabaseError:
            return None


lookout = _Lookout()


def _jams(workforce: Workforce, waiting: Sequence[str]) -> Iterator[Jam]:
    """One for all queues that the same workers serve. A query for all, and one more for each queue that waits."""
    queues: dict[tuple[Hand, ...], list[str]] = {}
    for queue_name in waiting:
        queues.setdefault(tuple(workforce.serving(queue_name)), []).append(queue_name)
    long = list(_long_jobs())
    for hands, queue_names in queues.items():
        ids = {hand.id for hand in hands}
        held = [(worker, task, ran) for worker, task, ran in long if worker in ids]
        taken = Counter((worker, registry.is_async(task)) for worker, task, _ in held)
        if not hands or any(max(taken[hand.id, False], taken[hand.id, True]) < hand.concurrency for hand in hands):
            continue  # somewhere both a thread and a coroutine are free
        waits = max(filter(None, map(_waits, queue_names)), default=timedelta(0))
        if waits >= LONG:
            (task, _), *_ = Counter(task for _, task, _ in held).most_common(1)
            slots = sum(hand.concurrency for hand in hands)
            yield Jam(tuple(map(_printed, queue_names)), slots, _printed(task), max(ran for _, _, ran in held), waits)


def _long_jobs() -> Iterator[tuple[str, str, timedelta]]:
    """Worker, task and time of the jobs that run for long, the oldest first. Index: recover."""
    running = Job.objects.running().annotate(now=Now()).filter(locked_at__lte=Now() - LONG).order_by("locked_at")
    columns = ("locked_by", "task", "locked_at", "now")
    for worker, task, locked_at, now in running.values_list(*columns)[:MOST_RUNNING]:
        yield worker, task, now - locked_at


def _waits(queue_name: str) -> timedelta | None:
    """For how long the next job of the queue has been due. Index: claim."""
    due = Job.objects.queued().filter(queue_name=queue_name).annotate(now=Now())
    row = due.order_by(*CLAIM_ORDER).values_list("now", "run_after").first()
    return max(row[0] - row[1], timedelta(0)) if row else None


def _printed(name: str) -> str:
    return printable(shorten(name, MAX_KEY_BYTES))


def _is_overdue() -> bool:
    """Whether a scheduled job is due, which a supervisor would have admitted."""
    due = Job.objects.scheduled().filter(run_after__lte=Now()).order_by("run_after")
    return due.values_list("pk").first() is not None
