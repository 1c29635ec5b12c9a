"""Plain values that the modules of the package pass to each other. A value is never changed after it is made. Pure.

A handle is a text that names a job and its database, such as `queue_1:42`. A moment of a process's monotonic clock is a
number of seconds.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self, TypedDict

from ..exceptions import InvalidOption
from .outcomes import Outcome, Settlement

_WORKER_ID = re.compile("(.*):([0-9a-f]{12})", re.DOTALL)


def worker_name(worker_id: str) -> str:
    """The NAME in the id of a worker process, `NAME:12 hex digits`. Returns any other text unchanged."""
    match = _WORKER_ID.fullmatch(worker_id)
    return match[1] if match else worker_id


def session_name(worker_id: str) -> str | None:
    """The `application_name` of a worker process's database sessions. `None` for the id of a loop written by hand.

    A supervisor ends the sessions of this name before it recovers the jobs of a dead worker.
    """
    match = _WORKER_ID.fullmatch(worker_id)
    return f"skipqueue:{match[2]}" if match else None


LeaseRef = tuple[int, int]
"""A job's id and one of its leases: the right to settle the job. A plain tuple is cheap: every attempt needs one."""


class JobColumns(TypedDict, total=False):
    """The columns that a caller of `Job.objects.enqueue` may set. `JobSpec` explains them."""

    queue_name: str
    priority: int
    max_attempts: int | None
    run_after: datetime | timedelta | None
    timeout: float | None


class JobReference(NamedTuple):
    """The id of a job, and perhaps its database."""

    id: int
    database: str | None
    """The alias of its database; `None`: the caller gave the id alone."""


NO_COLUMNS: Mapping[str, Any] = {}
"""Never changed."""


class JobSpec(NamedTuple):
    """The columns that all jobs of an `enqueue` or `enqueue_many` share. A field is the column of its name."""

    task: str
    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None`: `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    run_after: datetime | timedelta | None = None
    """A timedelta counts from now, by the database's clock; `None`: now."""
    timeout: float | None = None
    """Seconds that an attempt may take; `None`: the task's `timeout` at the time of the attempt."""
    retention: str | None = None
    """A JSON object: the seconds for which the finished job is kept, by status, where this is shorter than
    `SKIPQUEUE["RETENTION"]`."""
    metadata: str = "{}"
    """A JSON object of the caller's. The backend for `django.tasks` stores `backend` and `deferred` in it."""
    columns: Mapping[str, Any] = NO_COLUMNS
    """The columns of parts that the jobs share, by name: `PartColumns.of_spec` lists them."""
    after: tuple[JobReference, ...] = ()
    """The jobs that must be finished before the new jobs begin. Rows of a table of their own, not a column."""
    after_failure: str = "wait"
    """If a job in `after` fails or is discarded: `wait` until it is retried and completes, `discard` the new jobs, or
    `run` them."""
    on_conflict: "OnConflict" = "skip"
    """What an enqueue does if a job holds the unique key of a call. Not a column."""

    def with_columns(self, **columns: Any) -> Self:
        """Return this spec, with these columns of parts beside its own."""
        return self._replace(columns={**self.columns, **columns})

    @property
    def replaces(self) -> bool:
        """Whether a waiting holder of the unique key takes the arguments and the due time of the call."""
        return self.on_conflict in ("replace", "rerun")

    @property
    def is_plain(self) -> bool:
        """Whether `ENQUEUE_PLAIN` writes every field that is set."""
        return not (self.columns or self.after) and (self.run_after, self.timeout, self.retention) == (None, None, None)


INSERTED_FIELDS = {
    "priority": "smallint",
    "max_attempts": "smallint",
    "timeout": "float8",
    "retention": "jsonb",
    "metadata": "jsonb",
}
"""The fields of a `JobSpec` that each INSERT writes as they are, with the SQL types of their columns."""


class EncodedCall(NamedTuple):
    """The arguments of one job, as JSON, and the columns that depend on them: see `jobs.task.call_columns`."""

    args: str
    kwargs: str
    columns: Mapping[str, Any] = NO_COLUMNS
    """The columns of parts that depend on the arguments, by name: `PartColumns.key` and `PartColumns.of_key` list them.
    A column without a value is missing."""

    @property
    def unique_key(self) -> str | None:
        """The key that the job holds; `None`: it has none."""
        return self.columns.get("unique_key")

    def with_unique_key(self, key: str | None) -> Self:
        """Return this call, with another unique key, or with none."""
        others = {name: value for name, value in self.columns.items() if name != "unique_key"}
        return self._replace(columns=others if key is None else {**others, "unique_key": key})


class EnqueuedJob(NamedTuple):
    """What `Store.enqueue` has written."""

    spec: JobSpec
    """The spec, with the batch of the `with` block, the default of `max_attempts`, and what tracers have added."""
    call: EncodedCall
    """The call, with the limit and the rate of its queue."""
    id: int
    status: str
    gate: str | None
    """The gate at which it waits; `None`: it is not blocked."""
    run_after: datetime
    enqueued_at: datetime
    is_new: bool = True
    """False: a waiting job has taken the arguments of the call."""


class QueuePosition(NamedTuple):
    """The position of a job in its queue. Positions sort in the order of the claim index."""

    rank: int
    """The negated priority."""
    run_after: float
    """In seconds since the epoch."""
    id: int


QUEUE_HEAD = QueuePosition(-101, -math.inf, 0)
"""The position before every job: the highest priority is 100."""


LEFT_OUT = "null"
"""In place of `args` and `kwargs` of a job that an external worker ran: only the row has these, as they are large."""


class ClaimedJob(NamedTuple):
    """The columns of a claimed row that a run needs. Times are seconds since the epoch, by the database's clock."""

    id: int
    lease: int
    task: str
    queue_name: str
    args: str
    """A JSON list, not yet decoded; or `LEFT_OUT`."""
    kwargs: str
    """A JSON object, not yet decoded; or `LEFT_OUT`."""
    attempt: int
    max_attempts: int
    priority: int
    run_after: float
    locked_at: float
    metadata: str
    """A JSON object, not yet decoded."""
    timeout: float | None = None
    """Seconds that an attempt may take; `None`: the task's `timeout`."""
    unknown_since: float | None = None
    """When a worker that did not know its task first claimed the job; `None`: never since the last attempt that ran."""
    holds_permit: bool = False
    """Whether other jobs wait for its end: it has the key of a limit or of a sequence, or its task has `fair_by`."""
    claim_seconds: float = 0.0
    """Seconds from the start of the claim's statement until this row was updated."""
    is_suspect: bool | None = None
    """Whether two workers in a row died while they ran the job: then it runs alone in a process."""
    permit_key: str | None = None
    """The key of its limit, if a worker may claim jobs of this key ahead."""
    claimed_at: float | None = None
    """When the claim was sent, in monotonic seconds of the process that sent it."""

    @property
    def ref(self) -> LeaseRef:
        """The lease under which the job was claimed."""
        return self.id, self.lease

    @property
    def position(self) -> QueuePosition:
        """The position of the job in its queue before the claim."""
        return QueuePosition(-self.priority, self.run_after, self.id)

    @property
    def wait_ms(self) -> float:
        """Milliseconds between the due time of the job and its claim.

        A claim has the time of its statement, which begins before its snapshot: a row of that moment may be due later.
        """
        return max(self.locked_at - self.run_after, 0.0) * 1000

    def waited_ms(self, started: float) -> float:
        """Milliseconds between the due time and `started`, a monotonic time of the process that claimed the job."""
        held = 0.0 if self.claimed_at is None else started - self.claimed_at
        return self.wait_ms + held * 1000


class Attempt(NamedTuple):
    """One run of a job, with its outcome."""

    job: ClaimedJob
    outcome: Outcome
    started: float
    """The start, in monotonic seconds of the process that ran the attempt."""
    ended: float
    worker: str
    """The name of the worker that ran the attempt."""
    is_written: bool = False
    """Whether the task's own transaction has written the outcome."""
    database: str = "default"
    """The alias of the database with the job."""

    @property
    def settlement(self) -> Settlement:
        """The outcome with the lease that allows to write it."""
        return Settlement(self.job.id, self.job.lease, self.outcome, self.started, self.ended)

    @property
    def duration_ms(self) -> float:
        """The duration of the attempt in milliseconds."""
        return (self.ended - self.started) * 1000

    @property
    def wait_ms(self) -> float:
        """Milliseconds between the due time of the job and the start of the attempt."""
        return self.job.waited_ms(self.started)


class Noted(NamedTuple):
    """What an attempt has noted, and the lease that allows to write it."""

    job_id: int
    lease: int
    started: float
    """The start of the attempt, in monotonic seconds of this process."""
    notes: str
    """The progress and the log, as a JSON object."""


class Dependant(NamedTuple):
    """A job that has waited for other jobs, and no longer waits."""

    id: int
    task: str
    queue_name: str
    status: str
    """The new status: discarded, if a job that it needs has not completed; else the status of the next gate, or
    queued."""
    gate: str | None
    batch_id: int | None
    metadata: str
    """A JSON object, not yet decoded."""
    needs_job_id: int | None
    """The id of the job that has not completed, so that this job was discarded; `None`: it was not discarded."""


class RecoveredJob(NamedTuple):
    """A job that was recovered from a dead worker."""

    id: int
    task: str
    queue_name: str
    attempt: int
    status: str
    """The new status: failed after the last attempt or the third death in a row; scheduled after the second death or
    after a crash; blocked if it has a rate; else queued."""
    locked_by: str
    locked_at: datetime
    metadata: str
    """A JSON object, not yet decoded."""
    recovered_at: datetime
    """By the database's clock."""


LARGEST_ID = 2**63 - 1
"""PostgreSQL's largest bigint."""

MOST_DIGITS = len(str(LARGEST_ID))


def handle_of(alias: str, job_id: int) -> str:
    return f"{alias}:{job_id}"


def parse_handle(text: str) -> JobReference:
    """The job that a handle, or the id alone, names. Raises `InvalidOption` for a text that is neither."""
    alias, colon, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > MOST_DIGITS or (colon and not alias):
        raise InvalidOption(f"{text!r} is no handle: that is the alias of a database and an id, such as 'default:42'.")
    return JobReference(int(number), alias or None)


NEVER = math.inf
"""The moment of an event that is not expected to happen."""


OnConflict = Literal["skip", "replace", "raise", "rerun"]
"""What an enqueue does if a job holds the unique key of a call."""

CallOutcome = Literal["created", "existing", "replaced"]
"""`created`: a new job. `existing`: the job that holds the unique key, as it was. `replaced`: the job that holds the
unique key, which waits, and now has the arguments of the call."""


class DeferredJobs(list[int]):
    """The ids of the jobs, in the order of the calls: a list, which also has the outcome of each call."""

    databases: Sequence[str] = ()
    """For each call: the alias of the database with its job."""

    def __init__(self, ids: Iterable[int] = (), outcomes: Sequence[CallOutcome] | None = None) -> None:
        super().__init__(ids)
        self._outcomes = outcomes

    def all_in(self, alias: str) -> Self:
        """Return this list, with this database for all jobs."""
        self.databases = [alias] * len(self)
        return self

    @classmethod
    def merged(cls, parts: Mapping[str, tuple[Sequence[int], "DeferredJobs"]]) -> Self:
        """Merge lists into one. `parts`: by database, the positions of its calls, and the list of their jobs."""
        rows = sorted(
            (position, id, outcome, alias)
            for alias, (positions, deferred) in parts.items()
            for position, id, outcome in zip(positions, deferred, deferred.outcomes, strict=True)
        )
        made = cls((id for _, id, _, _ in rows), [outcome for _, _, outcome, _ in rows])
        made.databases = [alias for *_, alias in rows]
        return made

    @property
    def handles(self) -> list[str]:
        """For each call: the handle of its job, such as `queue_1:42`."""
        return [handle_of(alias, id) for alias, id in zip(self.databases, self, strict=True)]

    @property
    def outcomes(self) -> list[CallOutcome]:
        """For each call: `created`, `existing` or `replaced`."""
        return ["created"] * len(self) if self._outcomes is None else list(self._outcomes)

    @property
    def created(self) -> list[int]:
        """The ids of the new jobs."""
        return self._of("created")

    @property
    def existing(self) -> list[int]:
        """The ids of the jobs that hold the unique keys of calls for which nothing was written. They may repeat."""
        return self._of("existing")

    @property
    def replaced(self) -> list[int]:
        """The ids of the waiting jobs that now have the arguments of a call."""
        return self._of("replaced")

    def _of(self, outcome: CallOutcome) -> list[int]:
        return [id for id, of_call in zip(self, self.outcomes, strict=True) if of_call == outcome]


@dataclass(frozen=True)
class GateResult:
    by_queue: Mapping[str, int]
    """The number of admitted jobs, by queue."""
    has_discarded: bool = False
    """Whether jobs were discarded, or no longer need other jobs."""

    @property
    def goes_on(self) -> bool:
        return self.has_discarded or bool(self.by_queue)


Request = Literal["restart", "stop"]
"""`restart`: the process finishes its jobs and is replaced. `stop`: the `runworker` of the process stops, as after
SIGTERM."""

RESTART_REASON = "an operator has requested it"


def serves(given: Collection[str], queue_name: str, *, external: Collection[str]) -> bool:
    """Whether a worker serves this queue. `given`: the queues in its `--queues`; empty: it serves every queue.

    A worker serves an `external` queue, whose jobs run outside of the workers, only if `given` has it.
    """
    return queue_name in given if given else queue_name not in external


class Cause(NamedTuple):
    """The task, the exception's class, and the function that raised it: the innermost one of the project."""

    task: str
    exception: str
    place: str
    """Empty if the attempt has left no traceback."""
