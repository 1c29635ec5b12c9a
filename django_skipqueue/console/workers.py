"""Workers as operators see them: what each worker runs, what operators have requested of it, and its last jobs.

Invariant: one query reads the jobs of all workers. The last jobs of a worker are looked for among a bounded number of
the newest jobs, since no index has the worker of a finished job.
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
    """What operators may ask of a worker."""

    name: str
    """The value of `WorkerRequest.request`."""
    label: Any
    question: Any
    """With the worker's name."""
    explanation: Any
    requested: Any
    """The state until it is done."""
    done: Any
    """The message to the operator, with the worker's name."""
    is_dangerous: bool
    request: Callable[[Worker], bool]


WORKER_VERBS = (
    WorkerVerb(
        "restart",
        label=_("Restart"),
        question=_("Restart the worker %(worker)s?"),
        explanation=_(
            "It claims nothing more and finishes its jobs, however long they take. Then another process takes its "
            "place."
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
            "The whole runworker stops as after SIGTERM, with all its workers. Jobs that still run at the end of the "
            "shutdown timeout are released. What has started it may start it again."
        ),
        requested=_("stop requested"),
        done=_("The runworker of %(worker)s stops."),
        is_dangerous=True,
        request=Worker.stop,
    ),
)

SHOWN_JOBS = 5
"""Jobs of one worker that a list shows."""


@dataclass(frozen=True)
class ListedWorker:
    row: Any
    """A `Worker` with `requested`, and with the database's time as `now`."""
    held: HeldNow
    cells: Mapping[str, str]
    """What a part shows of it, by the name of the column: see `External.cells`."""

    @property
    def now(self) -> datetime:
        found: datetime = self.row.now
        return found

    @property
    def state(self) -> State:
        return state_after(self.row.now - self.row.heartbeat_at)

    @property
    def takes_requests(self) -> bool:
        """Whether it is a process of ours that does not count as dead."""
        return not self.row.is_external and self.state != "stale"

    @property
    def requested(self) -> str:
        """What is requested of it, in words; an empty string: nothing."""
        return next((str(verb.requested) for verb in WORKER_VERBS if verb.name == self.row.requested), "")

    @cached_property
    def busy(self) -> tuple[int, int, int]:
        """How many jobs it holds: in threads, in coroutines, and claimed ahead, waiting for a free slot.

        Either kind of runner has as many slots. Jobs of tasks that this process does not have count as threads.
        """
        counts = Counter({False: 0, True: 0})
        for task, number in self.held.tasks.items():
            counts[registry.is_async(task)] += number
        threads, coroutines = (min(counts[kind], self.row.concurrency) for kind in (False, True))
        return threads, coroutines, counts.total() - threads - coroutines


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
"""The facts of a worker."""


def worker_rows() -> QuerySet[Worker]:
    """The rows with what `worker_states` needs."""
    return Worker.objects.with_requests().annotate(now=Now())


def worker_states(rows: Iterable[Any], *, shown: int = SHOWN_JOBS) -> list[ListedWorker]:
    """These workers with the jobs that they hold now, `shown` jobs of each worker. One query reads all jobs.

    A row that is external has the cells of a part. The row is left out if no part has cells for it.
    """
    listed, held = list(rows), held_now(Store.default(), shown=shown)
    cells = {pk: row for each in externals() for pk, row in each.cells(Store.default(), listed).items()}
    found = (ListedWorker(row, held.get(row.pk, HeldNow({}, [])), cells.get(row.pk, {})) for row in listed)
    return [worker for worker in found if worker.cells or not worker.row.is_external]


NEWEST_JOBS = 1_000
"""How many jobs of each status are read to find the jobs of one worker."""

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

# page of a worker → the last jobs that processes of this name have run, among the `limit` newest of each status.
# The limits are subqueries: a planner that expects few rows and sees the limit would read and sort all of a status.
# Indexes: prune, recover, admit.
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

# page of a worker → the processes of this name that have run any of these jobs: the id, the number of the jobs, when
# the first of them began, when the last ended, and how many of them the process left when it died. Indexes: prune,
# recover, admit.
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
    """The attempts so far. A scheduled job with attempts waits for a retry."""
    began_at: datetime | None
    ended_at: datetime | None


class PastProcess(NamedTuple):
    id: str
    jobs: int
    began_at: datetime | None
    """When the first of these jobs began."""
    ended_at: datetime | None
    lost: int
    """The jobs that were recovered from the process. If there are any, it has died."""


def last_jobs_of(store: Store, worker_id: str) -> list[LastJob]:
    rows = store.rows(LAST_JOBS_OF_WORKER, {"name": worker_name(worker_id), "limit": NEWEST_JOBS})
    return [LastJob(*row) for row in rows]


def processes_of(store: Store, worker_id: str) -> list[PastProcess]:
    """The processes with the name of this worker that have run one of the newest jobs, the last process first."""
    values = {"name": worker_name(worker_id), "limit": NEWEST_JOBS, "died": DEATH_EXCEPTION}
    return [PastProcess(*row) for row in store.rows(PROCESSES_OF_WORKER, values)]
