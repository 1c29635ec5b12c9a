"""The records that the modules of the package pass to each other, such as a claimed job. They are immutable.

A handle is a string that names a job and its database, such as `queue_1:42`. A time on a process's monotonic clock is
given as a number of seconds.
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
    """Return NAME from a worker's id of the form `NAME:12 hex digits`. Any other string is returned unchanged."""
    match = _WORKER_ID.fullmatch(worker_id)
    return match[1] if match else worker_id


def session_name(worker_id: str) -> str | None:
    """The `application_name` of a worker's database sessions. `None` if the id does not belong to a worker process.

    A supervisor ends the sessions with this name before it recovers the jobs of a dead worker.
    """
    match = _WORKER_ID.fullmatch(worker_id)
    return f"skipqueue:{match[2]}" if match else None


LeaseRef = tuple[int, int]
"""A job's id and the number of one of its leases. Whoever holds the current lease may settle the job. This is a plain
tuple because every attempt needs one, and a tuple is cheap."""


class JobColumns(TypedDict, total=False):
    """The columns that a caller of `Job.objects.enqueue` may set. `JobSpec` explains them."""

    queue_name: str
    priority: int
    max_attempts: int | None
    run_after: datetime | timedelta | None
    timeout: float | None


class JobReference(NamedTuple):
    """The id of a job, and the alias of its database if the caller gave one."""

    id: int
    database: str | None
    """The alias of the job's database; `None` if the caller gave only the id."""


NO_COLUMNS: Mapping[str, Any] = {}
"""An empty default, which no code may change."""


class JobSpec(NamedTuple):
    """The columns that all jobs of one `enqueue` or `enqueue_many` share. Each field is the column of the same name."""

    task: str
    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None` means the value of `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    run_after: datetime | timedelta | None = None
    """When the job is due. A timedelta counts from now, by the database's clock; `None` means now."""
    timeout: float | None = None
    """Seconds that an attempt may take. `None` means the task's `timeout` at the time of the attempt."""
    retention: str | None = None
    """A JSON object with the seconds for which the finished job is kept, by status. It has only the statuses for which
    the time is shorter than `SKIPQUEUE["RETENTION"]`."""
    metadata: str = "{}"
    """A JSON object for the caller's own use. The backend for `django.tasks` stores `backend` and `deferred` in it."""
    columns: Mapping[str, Any] = NO_COLUMNS
    """The columns of parts, such as a batch, with the values that all jobs share. `PartColumns.of_spec` lists them."""
    after: tuple[JobReference, ...] = ()
    """The jobs that must be finished before the new jobs begin. They are stored in a separate table, not in a
    column."""
    after_failure: str = "wait"
    """If a job in `after` fails or is discarded: `wait` until it is retried and completes, `discard` the new jobs, or
    `run` them."""
    on_conflict: "OnConflict" = "skip"
    """What an enqueue does if another job already holds the unique key of a call. This is not a column."""

    def with_columns(self, **columns: Any) -> Self:
        """Return a copy of this spec with these additional columns of parts."""
        return self._replace(columns={**self.columns, **columns})

    @property
    def replaces(self) -> bool:
        """Whether a waiting job that holds the unique key gets the arguments and the due time of the new call."""
        return self.on_conflict in ("replace", "rerun")

    @property
    def is_plain(self) -> bool:
        """Whether the spec sets only columns that the short statement `ENQUEUE_PLAIN` writes."""
        return not (self.columns or self.after) and (self.run_after, self.timeout, self.retention) == (None, None, None)


INSERTED_FIELDS = {
    "priority": "smallint",
    "max_attempts": "smallint",
    "timeout": "float8",
    "retention": "jsonb",
    "metadata": "jsonb",
}
"""The fields of a `JobSpec` that each INSERT writes unchanged, with the SQL types of their columns."""


class EncodedCall(NamedTuple):
    """The arguments of one job as JSON, and the columns that depend on the arguments: see `jobs.task.call_columns`."""

    args: str
    kwargs: str
    columns: Mapping[str, Any] = NO_COLUMNS
    """The columns of parts that depend on the arguments, by name: `PartColumns.key` and `PartColumns.of_key` list them.
    A column without a value is missing."""

    @property
    def unique_key(self) -> str | None:
        """The job's unique key; `None` if it has none."""
        return self.columns.get("unique_key")

    def with_unique_key(self, key: str | None) -> Self:
        """Return a copy of this call with this unique key, or without a unique key."""
        other_columns = {name: value for name, value in self.columns.items() if name != "unique_key"}
        return self._replace(columns=other_columns if key is None else {**other_columns, "unique_key": key})


class EnqueuedJob(NamedTuple):
    """A job that `Store.enqueue` has inserted, or whose arguments it has replaced."""

    spec: JobSpec
    """The caller's spec, completed with the default of `max_attempts`, the batch of the caller's `with` block, and the
    metadata of tracers."""
    call: EncodedCall
    """The caller's call, completed with the limit and the rate of its queue."""
    id: int
    status: str
    gate: str | None
    """The name of the gate at which the job waits; `None` if it is not blocked."""
    run_after: datetime
    enqueued_at: datetime
    is_new: bool = True
    """`False` if an existing job, which was waiting, got the arguments of the call."""


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
"""Replaces `args` and `kwargs` of a job that an external worker ran. They may be large, so only the row has them."""


class ClaimedJob(NamedTuple):
    """The columns of a claimed job that an attempt needs, in the order and with the names of `CLAIMED`.

    Times are database times in seconds since the epoch. The fields from `is_suspect` on never leave the process.
    """

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
    """Seconds that an attempt may take; `None` means the task's `timeout`."""
    unknown_since: float | None = None
    """When the job was first claimed by a worker in which the job's task is not registered. Reset when an attempt
    runs."""
    holds_permit: bool = False
    """Whether other jobs may have to wait until this job ends, because of a limit, a sequence or `fair_by`."""
    claim_seconds: float = 0.0
    """Seconds from the start of the claim statement until it updated this row."""
    is_suspect: bool | None = None
    """Whether two workers in a row died while they ran this job. Such a job runs alone in its process."""
    permit_key: str | None = None
    """The key of the job's limit, if a worker may claim further jobs of this key before the limit has room for them."""
    claimed_at: float | None = None
    """When the claim was sent, by the monotonic clock of the process that sent it."""

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

        `locked_at` is the start of the claim statement, but the statement sees rows that were written shortly after
        its start. So the due time may even be later than `locked_at`.
        """
        return max(self.locked_at - self.run_after, 0.0) * 1000

    def waited_ms(self, started: float) -> float:
        """Milliseconds between the due time and `started`, a monotonic time of the process that claimed the job."""
        seconds_since_claim = 0.0 if self.claimed_at is None else started - self.claimed_at
        return self.wait_ms + seconds_since_claim * 1000


class Attempt(NamedTuple):
    """One run of a job, with its outcome."""

    job: ClaimedJob
    outcome: Outcome
    started: float
    """When the attempt started, by the monotonic clock of the process that ran it."""
    ended: float
    worker: str
    """The name of the worker that ran the attempt."""
    is_written: bool = False
    """Whether the outcome was already written, in the task's own transaction."""
    database: str = "default"
    """The alias of the database that holds the job."""

    @property
    def settlement(self) -> Settlement:
        """The outcome, together with the lease that gives the right to write it."""
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
    """Progress and log lines that a running attempt has noted, with the lease that gives the right to write them."""

    job_id: int
    lease: int
    started: float
    """When the attempt started, by the monotonic clock of this process."""
    notes: str
    """A JSON object with the progress and the log."""


class Dependant(NamedTuple):
    """A job that has waited for other jobs, and no longer waits."""

    id: int
    task: str
    queue_name: str
    status: str
    """The new status: `discarded` if a job that had to complete first did not complete. Otherwise `queued`, or the
    status that the next gate gives to the job."""
    gate: str | None
    batch_id: int | None
    metadata: str
    """A JSON object, not yet decoded."""
    needs_job_id: int | None
    """If this job was discarded, the id of the job that should have completed first; otherwise `None`."""


class RecoveredJob(NamedTuple):
    """A job that was recovered from a dead worker."""

    id: int
    task: str
    queue_name: str
    attempt: int
    status: str
    """The new status: `failed` after the last attempt, or after its workers died three times in a row; `scheduled`
    after the second death, or after a crash; `blocked` if the job has a rate; otherwise `queued`."""
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
    """Return the job that a string names, which is a handle or only an id. Raises `InvalidOption` for other strings."""
    alias, colon, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > MOST_DIGITS or (colon and not alias):
        raise InvalidOption(f"{text!r} is no handle: that is the alias of a database and an id, such as 'default:42'.")
    return JobReference(int(number), alias or None)


NEVER = math.inf
"""The time of an event that is never going to happen."""


OnConflict = Literal["skip", "replace", "raise", "rerun"]
"""What an enqueue does if another job already holds the unique key of a call."""

CallOutcome = Literal["created", "existing", "replaced"]
"""The outcome of a call. `created`: a new job was inserted. `existing`: another job holds the unique key, and was not
changed. `replaced`: a waiting job holds the unique key, and got the arguments of the call."""


class DeferredJobs(list[int]):
    """A list of the job ids of several calls, in the order of the calls, which also knows the outcome of each call."""

    databases: Sequence[str] = ()
    """For each call, the alias of the database that holds its job."""

    def __init__(self, ids: Iterable[int] = (), outcomes: Sequence[CallOutcome] | None = None) -> None:
        super().__init__(ids)
        self._outcomes = outcomes

    def all_in(self, alias: str) -> Self:
        """Set the database of all jobs, and return this list."""
        self.databases = [alias] * len(self)
        return self

    @classmethod
    def merged(cls, lists_by_alias: Mapping[str, tuple[Sequence[int], "DeferredJobs"]]) -> Self:
        """Merge the lists of several databases into one list, in the order of the calls.

        lists_by_alias: by database alias, the positions of the calls whose jobs are there, and the list of these jobs.
        """
        rows = sorted(
            (position, id, outcome, alias)
            for alias, (positions, deferred) in lists_by_alias.items()
            for position, id, outcome in zip(positions, deferred, deferred.outcomes, strict=True)
        )
        merged_jobs = cls((id for _, id, _, _ in rows), [outcome for _, _, outcome, _ in rows])
        merged_jobs.databases = [alias for *_, alias in rows]
        return merged_jobs

    @property
    def handles(self) -> list[str]:
        """For each call, the handle of its job, such as `queue_1:42`."""
        return [handle_of(alias, id) for alias, id in zip(self.databases, self, strict=True)]

    @property
    def outcomes(self) -> list[CallOutcome]:
        """For each call, its outcome: `created`, `existing` or `replaced`."""
        return ["created"] * len(self) if self._outcomes is None else list(self._outcomes)

    @property
    def created(self) -> list[int]:
        """The ids of the new jobs."""
        return self._with_outcome("created")

    @property
    def existing(self) -> list[int]:
        """For calls that wrote nothing: the ids of the jobs that already hold their unique keys. An id may repeat."""
        return self._with_outcome("existing")

    @property
    def replaced(self) -> list[int]:
        """The ids of the waiting jobs that got the arguments of a call."""
        return self._with_outcome("replaced")

    def _with_outcome(self, outcome: CallOutcome) -> list[int]:
        return [id for id, call_outcome in zip(self, self.outcomes, strict=True) if call_outcome == outcome]


@dataclass(frozen=True)
class GateResult:
    """The result of one call of a gate's `admit`."""

    by_queue: Mapping[str, int]
    """The number of admitted jobs, by queue."""
    has_discarded: bool = False
    """Whether waiting jobs were discarded, or no longer have to wait for other jobs."""

    @property
    def has_changed_jobs(self) -> bool:
        """Whether the gate has changed a job. If so, the caller calls `admit` again at once."""
        return self.has_discarded or bool(self.by_queue)


Request = Literal["restart", "stop"]
"""An operator's request to a worker process. `restart`: the process finishes its jobs and is replaced. `stop`: the
whole `runworker` command of the process stops, as after SIGTERM."""

RESTART_REASON = "an operator has requested it"


def serves(listed_queues: Collection[str], queue_name: str, *, external: Collection[str]) -> bool:
    """Whether a worker serves this queue.

    listed_queues: the queues in the worker's option `--queues`. If it is empty, the worker serves every queue except
    the `external` queues, whose jobs run outside of our workers.
    """
    return queue_name in listed_queues if listed_queues else queue_name not in external


class Cause(NamedTuple):
    """Why an attempt failed: the task, the class of the exception, and the project's function that raised it."""

    task: str
    exception: str
    place: str
    """The function's dotted path. Empty if the attempt left no traceback."""
