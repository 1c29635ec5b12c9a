"""The notices over every page: queues without a worker or a free slot, or paused; late workers; those of parts.

Invariant: the queries are bounded, whatever the tables' size.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db.models.functions import Now

from ...conf import settings
from ...events.log_format import printable
from ...jobs.registry import registry
from ...models import Job, Queue
from ...models.expressions import CLAIM_ORDER
from ...queue.store import Store
from ...values.bounds import MAX_KEY_BYTES
from ...values.codec import shorten
from ..durations import span
from ..parts import PartNotice, consoles
from ..queues_and_workers import WorkerHealth, Workforce, not_external, pause_sentence, recovered
from .ui.cached import CachedRead

MOST = 20
"""The maximum of queues in one notice. The others appear when these are served."""

MOST_RUNNING = 5_000
"""The maximum of running jobs that are read."""

LONG = timedelta(minutes=1)
"""A job that runs for longer takes its slot away from the others."""


@dataclass(frozen=True)
class NoWorker:
    queue_names: tuple[str, ...]
    """The queues with waiting jobs; empty if no worker is alive at all: then any worker helps."""

    @classmethod
    def of(cls, workforce: Workforce, waiting: Sequence[str]) -> "NoWorker | None":
        own = [name for name in waiting if name not in settings.external_queues]
        if not workforce.not_dead:
            due = Job.objects.scheduled().filter(run_after__lte=Now()).order_by("run_after").values_list("pk")
            return cls(()) if own or due.first() else None  # a live supervisor would have admitted it
        unserved = sorted(workforce.unserved(own))[:MOST]
        return cls(tuple(map(printed, unserved))) if unserved else None

    @property
    def command(self) -> str:
        """The command that starts a worker, for a POSIX shell."""
        command = ["python", "manage.py", "runworker"]
        if self.queue_names:
            command += ["--queues", ",".join(self.queue_names)]
        return shlex.join(command)


@dataclass(frozen=True)
class NoFreeSlot:
    """Jobs wait, and jobs that run for long hold every slot of the workers that serve their queues."""

    queue_names: tuple[str, ...]
    slots: int
    task: str
    """The task that holds most of them."""
    longest_in_words: str
    """For how long the first of the jobs has run."""
    waits_in_words: str
    """For how long the next job of these queues has been due."""


@dataclass(frozen=True)
class Notices:
    no_worker: NoWorker | None
    no_free_slot: tuple[NoFreeSlot, ...]
    late_workers: tuple[WorkerHealth, ...]
    """The workers that are late, or count as dead and have jobs to be recovered."""
    paused: tuple[Queue, ...]
    of_parts: tuple[PartNotice, ...]

    @classmethod
    def now(cls) -> "Notices":
        workforce, waiting = Workforce.now(), Store.default().queues_with_jobs()
        no_free_slot = tuple(_no_free_slot(workforce, waiting[:MOST])) if waiting and workforce.not_dead else ()
        gone = recovered(workforce)
        late_workers = tuple([worker for worker in workforce.late_or_stale if worker not in gone][:MOST])
        no_worker = NoWorker.of(workforce, waiting)
        of_parts = tuple(notice for part in consoles() if part.notices for notice in part.notices(waiting))
        paused = tuple(Queue.objects.paused().order_by("name")[:MOST])
        return cls(no_worker, no_free_slot, late_workers, paused, of_parts)

    @property
    def paused_names(self) -> tuple[str, ...]:
        return tuple(printed(queue.name) for queue in self.paused)

    @property
    def pause_in_words(self) -> str:
        """The pause, if one queue alone is paused."""
        return pause_sentence(self.paused[0]) if len(self.paused) == 1 else ""


notices_cache = CachedRead(Notices.now)


def _no_free_slot(workforce: Workforce, waiting: Sequence[str]) -> Iterator[NoFreeSlot]:
    """One notice for all queues with the same workers. Sends one query, and one more for each queue that waits."""
    queues: dict[tuple[WorkerHealth, ...], list[str]] = {}
    for queue_name in waiting:
        queues.setdefault(tuple(workforce.serving(queue_name)), []).append(queue_name)
    long = list(_long_jobs())
    for workers, queue_names in queues.items():
        ids = {worker.id for worker in workers}
        held = [(worker_id, task, ran) for worker_id, task, ran in long if worker_id in ids]
        taken = Counter((worker_id, registry.is_async(task)) for worker_id, task, _ in held)
        if not workers or any(
            not each.slots or max(taken[each.id, False], taken[each.id, True]) < each.slots for each in workers
        ):
            continue  # one of the workers has both a free thread and a free coroutine, or hands its jobs on
        waits = max(filter(None, map(wait_of, queue_names)), default=timedelta(0))
        if waits >= LONG:
            (task, _), *_ = Counter(task for _, task, _ in held).most_common(1)
            slots = sum(worker.slots for worker in workers)
            longest = span(max(ran for _, _, ran in held))
            yield NoFreeSlot(tuple(map(printed, queue_names)), slots, printed(task), longest, span(waits))


def _long_jobs() -> Iterator[tuple[str, str, timedelta]]:
    """Worker, task and running time of the jobs that run for long, the oldest first. Index: recover."""
    running = Job.objects.running().annotate(now=Now()).filter(locked_at__lte=Now() - LONG)
    running = not_external(running).order_by("locked_at")
    columns = ("locked_by", "task", "locked_at", "now")
    for worker, task, locked_at, now in running.values_list(*columns)[:MOST_RUNNING]:
        yield worker, task, now - locked_at


def wait_of(queue_name: str) -> timedelta | None:
    """For how long the next job of the queue has been due. Index: claim."""
    due = Job.objects.queued().filter(queue_name=queue_name).annotate(now=Now())
    row = due.order_by(*CLAIM_ORDER).values_list("now", "run_after").first()
    return max(row[0] - row[1], timedelta(0)) if row else None


def printed(name: str) -> str:
    return printable(shorten(name, MAX_KEY_BYTES))
