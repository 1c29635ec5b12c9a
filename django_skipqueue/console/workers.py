"""What operators see of workers: each worker's running jobs, pending requests and last jobs.

A single query reads the jobs of all workers. No index contains the worker of a finished job, so a worker's last jobs
are searched among a limited number of the newest jobs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..exceptions import WorkerDied
from ..jobs.registry import registry
from ..models import Worker
from ..queue.fragments import joined
from ..queue.observe import HeldNow, held_now
from ..queue.store import Store
from ..values.fact import Fact
from ..values.records import worker_name
from .parts import externals
from .queues_and_workers import State, state_after


@dataclass(frozen=True)
class WorkerVerb:
    """Something that operators can request of a worker."""

    name: str
    """The value of `WorkerRequest.request`."""
    label: Any
    question: Any
    """The question, which contains the worker's name."""
    explanation: Any
    requested: Any
    """The text that pages show beside the worker's state until the request has been carried out."""
    done: Any
    """The message for the operator, which contains the worker's name."""
    is_dangerous: bool
    request: Callable[[Worker], bool]


WORKER_VERBS = (
    WorkerVerb(
        "restart",
        label=_("Restart"),
        question=_("Restart the worker %(worker)s?"),
        explanation=_(
            "It claims no more jobs and finishes its running jobs, however long they take. Then a new process replaces "
            "it."
        ),
        requested=_("restart requested"),
        done=_("The worker %(worker)s restarts once its jobs have ended."),
        is_dangerous=False,
        request=Worker.restart,
    ),
    WorkerVerb(
        "stop",
        label=_("Stop"),
        question=_("Stop the runworker of %(worker)s?"),
        explanation=_(
            "The whole runworker stops, with all its workers, as after SIGTERM. Jobs that still run at the end of the "
            "shutdown timeout are released. Your service manager may start it again."
        ),
        requested=_("stop requested"),
        done=_("The runworker of %(worker)s stops."),
        is_dangerous=True,
        request=Worker.stop,
    ),
)

SHOWN_JOBS = 5
"""A list shows at most this many jobs per worker."""


@dataclass(frozen=True)
class ListedWorker:
    row: Any
    """A `Worker` with the annotations `requested`, and `now`, the database's time."""
    held: HeldNow
    """The jobs that the worker has claimed or runs."""
    cells: Mapping[str, str]
    """Cells from a part, by the name of the column: see `External.cells`."""

    @property
    def now(self) -> datetime:
        now: datetime = self.row.now
        return now

    @property
    def state(self) -> State:
        return state_after(self.row.now - self.row.heartbeat_at)

    @property
    def takes_requests(self) -> bool:
        """Whether the worker is a live process of this package, and not of an external system."""
        return not self.row.is_external and self.state != "stale"

    @property
    def requested(self) -> str:
        """The pending request, such as a restart, in words; empty if there is none."""
        return next((str(verb.requested) for verb in WORKER_VERBS if verb.name == self.row.requested), "")

    @cached_property
    def busy(self) -> tuple[int, int, int]:
        """The number of jobs in threads, in coroutines, and waiting in the worker for a free slot.

        A worker has as many slots for coroutines as for threads. Jobs whose task is unknown here count as threads.
        """
        jobs_by_kind = Counter({False: 0, True: 0})  # the keys say whether the jobs' tasks are async
        for task, job_count in self.held.tasks.items():
            jobs_by_kind[registry.is_async(task)] += job_count
        threads, coroutines = (min(jobs_by_kind[is_async], self.row.concurrency) for is_async in (False, True))
        return threads, coroutines, jobs_by_kind.total() - threads - coroutines


WORKER: tuple[Fact[ListedWorker], ...] = (
    Fact("state", _("state"), lambda worker: worker.state),
    Fact("requested", "", lambda worker: worker.row.requested or None),
    Fact("worker", _("worker"), lambda worker: worker.row.name, field="name"),
    Fact("id", "", lambda worker: worker.row.pk),
    Fact("hostname", "", lambda worker: worker.row.hostname),
    Fact("pid", "", lambda worker: worker.row.pid),
    Fact("deployment", "", lambda worker: worker.row.deployment or None),
    Fact("queue_names", _("queues"), lambda worker: worker.row.queues, field="queues"),
    Fact("slots", _("slots"), lambda worker: worker.row.concurrency, "jobs"),
    Fact("threads", "", lambda worker: worker.busy[0]),
    Fact("coroutines", "", lambda worker: worker.busy[1]),
    Fact("claimed_ahead", "", lambda worker: worker.busy[2]),
    Fact("runs_now", _("runs now"), lambda worker: worker.held.jobs, field="jobs"),
    Fact("memory", _("memory"), lambda worker: worker.row.memory_mb, "jobs", field="memory_mb"),
    Fact("jobs_done", "", lambda worker: worker.row.jobs_done),
    Fact("last_heartbeat", _("last heartbeat"), lambda worker: worker.row.heartbeat_at, "time", field="heartbeat_at"),
    Fact("started", _("started"), lambda worker: worker.row.started_at, "time", field="started_at"),
)
"""The facts about one worker."""


def worker_rows() -> QuerySet[Worker]:
    """Return the rows of workers, with the annotations that `worker_states` needs."""
    return Worker.objects.with_requests().annotate(now=Now())


def worker_states(rows: Iterable[Any], *, shown: int = SHOWN_JOBS) -> list[ListedWorker]:
    """Return these workers with their current jobs, at most `shown` jobs each.

    One query reads all jobs. For the row of an external system, such as another job queue, a part (an optional feature)
    returns the cells. A row of an external system without cells is left out.
    """
    listed_rows, held_by_worker = list(rows), held_now(Store.default(), shown=shown)
    cells = {
        pk: worker_cells
        for external in externals()
        for pk, worker_cells in external.cells(Store.default(), listed_rows).items()
    }
    workers = (
        ListedWorker(row, held_by_worker.get(row.pk, HeldNow({}, [])), cells.get(row.pk, {})) for row in listed_rows
    )
    return [worker for worker in workers if worker.cells or not worker.row.is_external]


NEWEST_JOBS = 1_000
"""To find the jobs of one worker, this many of the newest jobs of each status are read."""

_RECENT = """(
    (SELECT * FROM skipqueue_job WHERE status = 'completed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'failed' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'discarded' ORDER BY finished_at DESC LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT (SELECT %(limit)s))
    UNION ALL
    (SELECT * FROM skipqueue_job WHERE status = 'scheduled' ORDER BY run_after LIMIT (SELECT %(limit)s))
)"""

# Sent by the page of a worker. Reads the `limit` newest jobs of each status. Returns the last jobs among them that
# processes with this name have run: the id of a process is its name, or begins with its name and a colon. Each LIMIT
# is a subquery, because a planner that sees a small number and expects few rows would read and sort all jobs of the
# status. Indexes: prune, recover, admit.
LAST_JOBS_OF_WORKER = joined(
    """
SELECT id, task, queue_name, status, attempts, started_at, finished_at
FROM {recent} AS recent
WHERE status <> 'running' AND (locked_by = %(name)s OR left(locked_by, length(%(name)s) + 1) = %(name)s || ':')
ORDER BY coalesce(finished_at, started_at) DESC NULLS LAST, id DESC
LIMIT 20
""",
    recent=_RECENT,
)

# Sent by the page of a worker. Reads the same jobs as LAST_JOBS_OF_WORKER. Returns the processes with this name that
# have run any of them. Each row has the id of the process, the number of these jobs, when the first of them began, when
# the last of them ended, and how many jobs the process lost when it died. Indexes: prune, recover, admit.
PROCESSES_OF_WORKER = joined(
    """
SELECT process, count(*) FILTER (WHERE NOT is_lost), min(began_at), max(ended_at), count(*) FILTER (WHERE is_lost)
FROM (
    SELECT locked_by AS process, started_at AS began_at, finished_at AS ended_at, false AS is_lost
    FROM {recent} AS recent
    UNION ALL
    SELECT entry ->> 'worker_id', NULL, NULL, true
    FROM {recent} AS recent, jsonb_array_elements(errors) AS entry
    WHERE errors <> '[]' AND entry ->> 'exception' = %(died)s
) AS attempt
WHERE process = %(name)s OR left(process, length(%(name)s) + 1) = %(name)s || ':'
GROUP BY process
ORDER BY max(began_at) DESC NULLS LAST, process
LIMIT 20
""",
    recent=_RECENT,
)

DEATH_EXCEPTION = f"{WorkerDied.__module__}.{WorkerDied.__qualname__}"


class LastJob(NamedTuple):
    id: int
    task: str
    queue_name: str
    status: str
    attempts: int
    """The number of attempts so far. A scheduled job with attempts waits for a retry."""
    began_at: datetime | None
    ended_at: datetime | None


class PastProcess(NamedTuple):
    id: str
    jobs: int
    began_at: datetime | None
    """When the first of these jobs began."""
    ended_at: datetime | None
    lost: int
    """How many jobs were recovered from the process. If there are any, the process has died."""


def last_jobs_of(store: Store, worker_id: str) -> list[LastJob]:
    rows = store.rows(LAST_JOBS_OF_WORKER, {"name": worker_name(worker_id), "limit": NEWEST_JOBS})
    return [LastJob(*row) for row in rows]


def processes_of(store: Store, worker_id: str) -> list[PastProcess]:
    """Return the processes with this worker's name that have run one of the newest jobs, the latest first."""
    values = {"name": worker_name(worker_id), "limit": NEWEST_JOBS, "died": DEATH_EXCEPTION}
    return [PastProcess(*row) for row in store.rows(PROCESSES_OF_WORKER, values)]
