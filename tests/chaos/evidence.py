"""The evidence after a scenario: rows of the witness's tables, log lines, the census of processes, and the faults.

Invariant: the evidence is plain values, read once. Other modules judge it.
"""

import bisect
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import psycopg

CANCELLED = "cancelled by the load"
"""The reason of every job that the load cancels."""

URGENT = 100
"""The priority of jobs that must start before all other jobs."""

POSTGRES = "PostgreSQL"
"""The target of faults that hit all machines."""

LOG_BLOCKED = "log blocked"
"""The fault during which nobody reads the log output of a machine."""

JOB_ID = re.compile(r" id=(\d+) ")
"""Finds the id of a job in a log line."""

FINISHED = ("completed", "failed", "discarded")


class Change(NamedTuple):
    """One change of the row of a job. Times are seconds since the epoch, by the real clock."""

    seq: int
    at: float
    job: int
    unique_key: str | None
    before: str | None
    """The status before the change; `None` if there was no row."""
    after: str | None
    """The status after the change; `None` if the row was deleted."""
    lease_before: int | None
    lease: int
    attempts_before: int | None
    attempts: int
    max_attempts: int
    holder_before: str | None
    holder: str
    """`locked_by`: the id of a worker process."""
    ran_under: int | None
    """The lease under which the task ran, as its outcome says; `None` if the outcome says nothing."""
    error: str | None
    limit_key: str | None = None
    limit_kind: str | None = None
    capacity: int | None = None
    rate_key: str | None = None
    rate_interval: float | None = None
    rate_burst: int | None = None
    statement_began: float = 0.0
    """When the statement that made the change began, by the clock of PostgreSQL, which may be wrong."""
    batch: int | None = None
    calls_back: str | None = None
    """If the job is a callback of its batch, the kind of callback, such as `on_finish`; otherwise `None`."""
    had_begun: bool | None = None
    """Whether the row before the change says that the job has begun."""
    has_begun: bool | None = None
    """Whether the row after the change says that the job has begun."""
    is_ahead: bool | None = None
    """Whether the job was claimed before it had a permit: later it takes over the permit of another job."""

    @property
    def verb(self) -> str:
        """The kind of change, derived from the row; `illegal` if the package never changes a job in this way."""
        if self.before == "running" and self.after is not None:
            return self._end_of_lease()
        legal_changes: dict[tuple[str | None, str | None], str] = {
            (None, "scheduled"): "enqueue",
            (None, "queued"): "enqueue",
            (None, "blocked"): "enqueue",
            ("scheduled", "queued"): "admit",
            ("scheduled", "blocked"): "admit",
            ("blocked", "queued"): "admit",
            ("queued", "blocked"): "put_back",
            ("queued", "running"): "claim",
            ("blocked", "running"): "claim",
            ("scheduled", "discarded"): "discard",
            ("queued", "discarded"): "discard",
            ("blocked", "discarded"): "discard",
            ("failed", "discarded"): "discard",
            ("failed", "queued"): "retry",
            ("discarded", "queued"): "retry",
            ("failed", "blocked"): "retry",
            ("discarded", "blocked"): "retry",
            ("discarded", None): "prune",
        }
        return legal_changes.get((self.before, self.after), "illegal")

    def _end_of_lease(self) -> str:
        error = self.error or ""
        if self.after == "running":
            if (self.holder, self.lease) == (self.holder_before, self.lease_before):
                return "reset_attempts" if self.attempts == 1 else "illegal"
            if self.holder == self.holder_before or self.attempts != self.attempts_before:
                return "illegal"
            return "hand_over" if self.lease == self.lease_before else "take_over"
        if "WorkerDied" in error:
            return "recover"
        if self.after == "discarded" and CANCELLED in error:
            return "cancel"
        if self.after in ("queued", "blocked") and not self.holder:
            return "release"
        return "settle"


class Entry(NamedTuple):
    """One row that a task of the load has written."""

    job: int
    lease: int
    what: str
    """`begin`, `end` or `effect`."""
    at: float


class BatchChange(NamedTuple):
    """A change of a batch: it was made (`open`), finished, or deleted. `seq` counts changes of jobs and batches."""

    seq: int
    batch: int
    parent: int | None
    what: str
    calls: frozenset[str]
    """The callbacks that the batch has."""


class Need(NamedTuple):
    """A dependency that the load has recorded in the transaction that deferred a chain."""

    job: int
    needs: int
    after_failure: str


class Promise(NamedTuple):
    """A job that the load has recorded in the transaction that deferred it."""

    token: str
    job: int
    created: bool
    task: str
    priority: int


class HeldLease(NamedTuple):
    """One lease: the change that began it (the claim), and the change that ended it."""

    claim: Change
    end: Change | None


class Line(NamedTuple):
    """One line of a machine's log."""

    at: float
    """When the line was read."""
    machine: str
    text: str


@dataclass(eq=False)
class Life:
    """The life of a worker process, as the census has seen it."""

    machine: str
    first_seen: float
    last_seen: float
    is_over: bool = False


class Death(NamedTuple):
    """A process that was killed, that hangs, or whose heartbeats stopped for much longer than the worker timeout."""

    pid: int
    at: float
    alone: bool
    """Whether the supervisor of the process still lives, so that it notices the death."""
    frozen: bool = False
    """Whether the process still exists, but does nothing."""


class Stop(NamedTuple):
    """A `runworker` that was asked to stop."""

    pids: frozenset[int]
    began: float
    ended: float
    code: int | None
    """The exit code; `None` if the `runworker` hung and was killed."""

    @property
    def had_workers(self) -> bool:
        """Whether the `runworker` had started its workers. Before that, SIGTERM ends it like any other program."""
        return len(self.pids) > 1


@dataclass(eq=False)
class Fault:
    """A fault that was caused on purpose in the system under test."""

    what: str
    target: str
    began: float
    ended: float = float("inf")
    slows: bool = True
    """Whether jobs of the target may wait because of the fault."""
    silences: bool = False
    """Whether live workers of the target may be taken for dead because of the fault."""
    deaths: list[Death] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    """Sentences about things that had to happen within a time after the fault, and did not."""

    def overlaps(self, began: float, ended: float) -> bool:
        """Whether the fault lasted at any moment of this time."""
        return self.began <= ended and began <= self.ended


@dataclass(kw_only=True)
class Evidence:
    """All evidence of one run of a scenario."""

    changes: list[Change] = field(default_factory=list)
    """Changes of jobs in their order; changes of one job, or of one unique key, in the order of their commits."""
    entries: list[Entry] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    batches: list[BatchChange] = field(default_factory=list)
    """Changes of batches in their order."""
    needs: list[Need] = field(default_factory=list)
    with_steps: set[int] = field(default_factory=set)
    """The jobs of the task `jobs.go_on`."""
    children: set[int] = field(default_factory=set)
    """The jobs that steps have deferred."""
    recorded: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The names of the recorded steps of each job, in their order."""
    signals: dict[int, list[str]] = field(default_factory=dict)
    """The payloads of the signals that the load has committed, by job."""
    taken: dict[int, str] = field(default_factory=dict)
    """The payload that each completed job took, as the job's result says."""
    statuses: dict[int, str] = field(default_factory=dict)
    """The status of each job at the end, or when it was pruned."""
    atomic: set[int] = field(default_factory=set)
    """The jobs whose effect shares a transaction with their outcome."""
    processes: dict[str, int] = field(default_factory=dict)
    """The process id of each worker, by its id as in `Job.locked_by`."""
    names: dict[str, str] = field(default_factory=dict)
    """The name of each worker, by its id as in `Job.locked_by`."""
    lives: dict[int, Life] = field(default_factory=dict)
    """The life of each worker process, by its process id."""
    urgent: set[int] = field(default_factory=set)
    """The jobs that must start before all other jobs."""
    row_writers: set[int] = field(default_factory=set)
    """The jobs whose task writes a row through Django."""
    rows: dict[str, set[int]] = field(default_factory=dict)
    """The jobs that have written such a row, by the schema in which the row is."""
    log: list[Line] = field(default_factory=list)
    """The log lines of all machines."""
    faults: list[Fault] = field(default_factory=list)
    worker_timeout: float = 4.0
    rate: float = math.inf
    """Jobs that the load defers a second."""
    calm_from: float = 0.0
    """When the load ran at full speed, before the first fault."""
    broken_from: float = 0.0
    """When the first fault was about to begin."""
    calm_again: float = 0.0
    """When the last fault was over."""
    load_until: float = 0.0
    carried_counts: list[tuple[float, int]] = field(default_factory=list)
    """Times, and how many jobs the carrier (Celery) held at each time, according to the job table."""
    messages_left: dict[str, int] = field(default_factory=dict)
    """How many messages were left in each queue of the broker at the end."""

    @cached_property
    def held_leases(self) -> list[HeldLease]:
        """All leases, each with the change that ended it."""
        end_by_lease, claims = {}, []
        for change in self.changes:
            if change.verb in ("hand_over", "reset_attempts"):
                continue
            if change.before == "running":
                end_by_lease[change.job, change.lease_before] = change
            if change.after == "running":
                claims.append(change)
        return [HeldLease(claim, end_by_lease.get((claim.job, claim.lease))) for claim in claims]

    @cached_property
    def handed_over(self) -> dict[tuple[int, int], Change]:
        """The hand-over to a carrier under each lease that had one, by job and lease."""
        return {(change.job, change.lease): change for change in self.changes if change.verb == "hand_over"}

    @cached_property
    def by_job(self) -> dict[int, list[Change]]:
        """The changes of each job."""
        grouped: defaultdict[int, list[Change]] = defaultdict(list)
        for change in self.changes:
            grouped[change.job].append(change)
        return dict(grouped)

    @cached_property
    def entries_of(self) -> dict[int, list[Entry]]:
        """The rows that the attempts of each job have written."""
        grouped: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            grouped[entry.job].append(entry)
        return dict(grouped)

    def status_at(self, job: int, seq: int) -> str | None:
        """The status of a job just before the change `seq`: `None` before its enqueue, the last one after a prune."""
        changes = self.by_job.get(job, [])
        index_before = bisect.bisect_left(changes, seq, key=lambda change: change.seq) - 1
        if index_before < 0:
            return None
        return changes[index_before].after or changes[index_before].before

    @cached_property
    def first_entry(self) -> dict[tuple[int, int], float]:
        """When a task wrote its first row under a lease, by job and lease."""
        return {(entry.job, entry.lease): entry.at for entry in reversed(self.entries)}

    @cached_property
    def lines_of(self) -> dict[int, list[Line]]:
        """The log lines that name a job, by its id."""
        grouped: defaultdict[int, list[Line]] = defaultdict(list)
        for line in self.log:
            for job_id in {int(digits) for digits in JOB_ID.findall(line.text)}:
                grouped[job_id].append(line)
        return dict(grouped)

    def machine_of(self, holder: str | None) -> str:
        """The machine of a worker, by the id that stands in `locked_by`."""
        return self.names.get(holder or "", "").partition("/")[0]

    @cached_property
    def deaths(self) -> list[tuple[Fault, Death]]:
        """All deaths, each with its fault."""
        return [(fault, death) for fault in self.faults for death in fault.deaths]

    @cached_property
    def stops(self) -> list[tuple[Fault, Stop]]:
        """All stops, each with its fault."""
        return [(fault, stop) for fault in self.faults for stop in fault.stops]

    def held_by(self, pids: set[int], at: float) -> list[HeldLease]:
        """The leases that these processes held at this time, without jobs that they had handed over to a carrier."""
        return [
            held_lease
            for held_lease in self.held_leases
            if self.processes.get(held_lease.claim.holder) in pids
            and held_lease.claim.at <= at
            and (held_lease.end is None or held_lease.end.at > at)
            and (held_lease.claim.job, held_lease.claim.lease) not in self.handed_over
        ]


CHANGES = """
SELECT seq, extract(epoch FROM at)::float8, job_id, unique_key, before, after, lease_before, lease, attempts_before,
    attempts, max_attempts, holder_before, holder, ran_under, error, limit_key, limit_kind, capacity,
    rate_key, rate_interval, rate_burst, extract(epoch FROM stated_at)::float8, batch_id, calls_back,
    had_begun, has_begun, is_ahead
FROM chaos_change ORDER BY seq
"""
ENTRIES = "SELECT job_id, lease, what, extract(epoch FROM at)::float8 FROM chaos_ledger ORDER BY seq"
PROMISES = "SELECT token, job_id, created, task, priority FROM chaos_promise ORDER BY token"
BATCHES = "SELECT seq, batch_id, parent_id, what, calls FROM chaos_batch ORDER BY seq"
NEEDS = "SELECT job_id, needs_job_id, after_failure FROM chaos_need ORDER BY job_id, needs_job_id"
STATUSES = "SELECT id, status FROM skipqueue_job"
PROCESSES = "SELECT worker_id, pid, name FROM chaos_process"
CHILDREN = "SELECT job_id FROM chaos_child"
RECORDED = """
SELECT job_id, array_agg(name ORDER BY number) FROM skipqueue_step WHERE recorded_at IS NOT NULL GROUP BY job_id
"""
SIGNALS = "SELECT job_id, array_agg(payload) FROM chaos_signal GROUP BY job_id"
TAKEN = "SELECT id, result ->> 'signal' FROM skipqueue_job WHERE result ? 'signal'"
ROWS = """
SELECT 'chaos_tenant', job_id FROM chaos_tenant.chaos_row UNION SELECT 'public', job_id FROM public.chaos_row
"""

ATOMIC_TASKS = ("tests.chaos.jobs.work_atomic", "tests.chaos.jobs.work_completing")
TASKS_WITH_STEPS = ("tests.chaos.jobs.go_on",)
TASKS_THAT_WRITE_ROWS = ("tests.chaos.jobs.write_row", "tests.chaos.jobs.write_row_again")


def gather(connection: psycopg.Connection[Any], **known: Any) -> Evidence:
    """Read the tables of the witness. `known` has the values that are not in the database."""
    promises = [Promise(*row) for row in connection.execute(PROMISES)]
    processes = connection.execute(PROCESSES).fetchall()
    changes = [Change(*row) for row in connection.execute(CHANGES)]
    pruned = {change.job: "discarded" for change in changes if change.verb == "prune"}
    rows: defaultdict[str, set[int]] = defaultdict(set)
    for schema, job in connection.execute(ROWS):
        rows[schema].add(job)
    return Evidence(
        changes=changes,
        entries=[Entry(*row) for row in connection.execute(ENTRIES)],
        promises=promises,
        batches=[
            BatchChange(seq, batch, parent, what, frozenset(calls))
            for seq, batch, parent, what, calls in connection.execute(BATCHES)
        ],
        with_steps={promise.job for promise in promises if promise.task in TASKS_WITH_STEPS},
        children={job for (job,) in connection.execute(CHILDREN)},
        recorded={job: tuple(names) for job, names in connection.execute(RECORDED)},
        signals=dict(connection.execute(SIGNALS).fetchall()),
        taken=dict(connection.execute(TAKEN).fetchall()),
        needs=[Need(*row) for row in connection.execute(NEEDS)],
        statuses=pruned | dict(connection.execute(STATUSES).fetchall()),
        atomic={promise.job for promise in promises if promise.task in ATOMIC_TASKS},
        urgent={promise.job for promise in promises if promise.priority == URGENT},
        row_writers={promise.job for promise in promises if promise.task in TASKS_THAT_WRITE_ROWS},
        processes={worker: pid for worker, pid, _ in processes},
        names={worker: name for worker, _, name in processes},
        rows=dict(rows),
        **known,
    )
