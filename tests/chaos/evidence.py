"""What is known after a scenario: from the witness's tables, the logs, the census, and the list of faults.

Invariant: plain values, read once; nothing here judges.
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
"""The priority of jobs that are to begin before all others."""

POSTGRES = "PostgreSQL"
"""The target of faults that hit all machines."""

LOG_BLOCKED = "log blocked"
"""The fault during which nobody reads a machine's log."""

JOB_ID = re.compile(r" id=(\d+) ")
"""How lines name a job."""

FINISHED = ("completed", "failed", "discarded")


class Change(NamedTuple):
    """One change of a job's row. Times are seconds since the epoch, by the clock of this machine and its PostgreSQL."""

    seq: int
    at: float
    job: int
    unique_key: str | None
    before: str | None
    """The status; `None`: there was no row."""
    after: str | None
    """`None`: the row was deleted."""
    lease_before: int | None
    lease: int
    attempts_before: int | None
    attempts: int
    max_attempts: int
    holder_before: str | None
    holder: str
    """`locked_by`: the id of a worker process."""
    ran_under: int | None
    """The lease under which the outcome came about, as the task itself said it; `None`: it said nothing."""
    error: str | None
    limit_key: str | None = None
    limit_kind: str | None = None
    capacity: int | None = None
    rate_key: str | None = None
    rate_interval: float | None = None
    rate_burst: int | None = None
    stated: float = 0.0
    """When its statement began, by PostgreSQL's own clock, which may be off."""
    batch: int | None = None
    calls_back: str | None = None
    """Which callback of its batch the job is; `None`: it is none."""
    had_begun: bool | None = None
    """Whether the job had begun before the change, as far as its row said."""
    has_begun: bool | None = None
    """Whether the job has begun after the change."""
    is_ahead: bool | None = None
    """Whether it is claimed without a permit of its own: it begins in the place of another of its worker's jobs."""

    @property
    def verb(self) -> str:
        """What was done to the job, as far as its row shows; `illegal` where no verb does that."""
        if self.before == "running" and self.after is not None:
            return self._end_of_lease()
        known: dict[tuple[str | None, str | None], str] = {
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
        return known.get((self.before, self.after), "illegal")

    def _end_of_lease(self) -> str:
        error = self.error or ""
        if self.after == "running":
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
    """One row that a task wrote."""

    job: int
    lease: int
    what: str
    at: float


class BatchChange(NamedTuple):
    """A batch was made (`open`), finished, or deleted; numbered like the changes of jobs."""

    seq: int
    batch: int
    parent: int | None
    what: str
    calls: frozenset[str]
    """The callbacks that it has."""


class Need(NamedTuple):
    """What the load wrote in the transaction that deferred a chain."""

    job: int
    needs: int
    after_failure: str


class Promise(NamedTuple):
    """What the load wrote in the transaction that deferred a job."""

    token: str
    job: int
    created: bool
    task: str
    priority: int


class Held(NamedTuple):
    """One lease: from its claim to what ended it."""

    claim: Change
    end: Change | None


class Line(NamedTuple):
    """One line of a machine's log."""

    at: float
    """When it was read."""
    machine: str
    text: str


@dataclass(eq=False)
class Life:
    """A worker process, as it was seen from outside."""

    machine: str
    first_seen: float
    last_seen: float
    is_over: bool = False


class Death(NamedTuple):
    """A process that was killed, that hangs, or that nobody could hear of for much longer than the worker timeout."""

    pid: int
    at: float
    alone: bool
    """Whether its supervisor lives, so that it is seen there."""
    frozen: bool = False
    """Whether the process is still there, and does nothing."""


class Stop(NamedTuple):
    """A `runworker` that was asked to stop."""

    pids: frozenset[int]
    began: float
    ended: float
    code: int | None
    """The exit code; `None`: it hung, and was killed."""

    @property
    def had_workers(self) -> bool:
        """Whether it was up: the signal that meets it at its start ends it as any other program."""
        return len(self.pids) > 1


@dataclass(eq=False)
class Fault:
    """Something that was done to the system under test."""

    what: str
    target: str
    began: float
    ended: float = float("inf")
    slows: bool = True
    """Whether jobs of its target may wait because of it."""
    silences: bool = False
    """Whether workers of its target that live may rightly be taken for dead."""
    deaths: list[Death] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    """What should have come about while it was under way, and did not."""

    def overlaps(self, began: float, ended: float) -> bool:
        """Whether it was under way in this time."""
        return self.began <= ended and began <= self.ended


@dataclass(kw_only=True)
class Evidence:
    """All of one scenario."""

    changes: list[Change] = field(default_factory=list)
    """In the order in which they were made; those of one job, or of one unique key, in the order of their commits."""
    entries: list[Entry] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    batches: list[BatchChange] = field(default_factory=list)
    """In the order in which they were made."""
    needs: list[Need] = field(default_factory=list)
    statuses: dict[int, str] = field(default_factory=dict)
    """Of all jobs, at the end; of those that were pruned, when they were."""
    atomic: set[int] = field(default_factory=set)
    """The jobs whose effect shares a transaction with their outcome."""
    processes: dict[str, int] = field(default_factory=dict)
    """The process ids of the workers, by the ids that stand in `locked_by`."""
    names: dict[str, str] = field(default_factory=dict)
    """Their names."""
    lives: dict[int, Life] = field(default_factory=dict)
    """Of the worker processes, by their process ids."""
    urgent: set[int] = field(default_factory=set)
    """The jobs that are to begin before all others."""
    placed: set[int] = field(default_factory=set)
    """The jobs that write a row into the schema that each new connection is set to."""
    rows: dict[str, set[int]] = field(default_factory=dict)
    """The jobs that have such a row, by the schema that it is in."""
    log: list[Line] = field(default_factory=list)
    """What all machines wrote."""
    faults: list[Fault] = field(default_factory=list)
    worker_timeout: float = 4.0
    rate: float = math.inf
    """Jobs that the load defers a second."""
    calm_from: float = 0.0
    """When the load began, and nothing was broken yet."""
    broken_from: float = 0.0
    """When the first fault was about to begin."""
    calm_again: float = 0.0
    """When the last fault was over."""
    load_until: float = 0.0
    carried: list[tuple[float, int]] = field(default_factory=list)
    """When it was looked how many jobs the carrier holds, by their rows, and how many they were."""
    left_over: dict[str, int] = field(default_factory=dict)
    """How many messages were left in each queue of the broker at the end."""

    @cached_property
    def held(self) -> list[Held]:
        """All leases."""
        ends, begins = {}, []
        for change in self.changes:
            if change.verb == "hand_over":
                continue
            if change.before == "running":
                ends[change.job, change.lease_before] = change
            if change.after == "running":
                begins.append(change)
        return [Held(claim, ends.get((claim.job, claim.lease))) for claim in begins]

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
        """What the tasks of each job wrote."""
        grouped: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            grouped[entry.job].append(entry)
        return dict(grouped)

    def status_at(self, job: int, seq: int) -> str | None:
        """The status of a job just before this number; of one that was pruned, the last one. `None`: no job yet."""
        changes = self.by_job.get(job, [])
        last = bisect.bisect_left(changes, seq, key=lambda change: change.seq) - 1
        if last < 0:
            return None
        return changes[last].after or changes[last].before

    @cached_property
    def first_entry(self) -> dict[tuple[int, int], float]:
        """When a task first wrote something under a lease, by job and lease."""
        return {(entry.job, entry.lease): entry.at for entry in reversed(self.entries)}

    @cached_property
    def lines_of(self) -> dict[int, list[Line]]:
        """The lines that name a job, by its id."""
        found: defaultdict[int, list[Line]] = defaultdict(list)
        for line in self.log:
            for number in {int(number) for number in JOB_ID.findall(line.text)}:
                found[number].append(line)
        return dict(found)

    def machine_of(self, holder: str | None) -> str:
        """The machine of a worker, by the id that stands in `locked_by`."""
        return self.names.get(holder or "", "").partition("/")[0]

    @cached_property
    def deaths(self) -> list[tuple[Fault, Death]]:
        """All of them, with the fault that each belongs to."""
        return [(fault, death) for fault in self.faults for death in fault.deaths]

    @cached_property
    def stops(self) -> list[tuple[Fault, Stop]]:
        """All of them, with the fault that each belongs to."""
        return [(fault, stop) for fault in self.faults for stop in fault.stops]

    def held_by(self, pids: set[int], at: float) -> list[Held]:
        """The leases that these processes held at a moment, and did not hand over."""
        return [
            held
            for held in self.held
            if self.processes.get(held.claim.holder) in pids
            and held.claim.at <= at
            and (held.end is None or held.end.at > at)
            and (held.claim.job, held.claim.lease) not in self.handed_over
        ]


CHANGES = """
SELECT seq, extract(epoch FROM at)::float8, job_id, unique_key, before, after, lease_before, lease, attempts_before,
    attempts, max_attempts, holder_before, holder, ran_under, error, limit_key, limit_kind, capacity,
    rate_key, rate_interval, rate_burst, extract(epoch FROM stated_at)::float8, batch_id, calls_back,
    had_begun, has_begun, is_ahead
FROM chaos_change ORDER BY seq
"""
ENTRIES = "SELECT job_id, lease, what, extract(epoch FROM at)::float8 FROM chaos_ledger ORDER BY at"
PROMISES = "SELECT token, job_id, created, task, priority FROM chaos_promise ORDER BY token"
BATCHES = "SELECT seq, batch_id, parent_id, what, calls FROM chaos_batch ORDER BY seq"
NEEDS = "SELECT job_id, needs_job_id, after_failure FROM chaos_need ORDER BY job_id, needs_job_id"
STATUSES = "SELECT id, status FROM skipqueue_job"
PROCESSES = "SELECT worker_id, pid, name FROM chaos_process"
ROWS = """
SELECT 'chaos_tenant', job_id FROM chaos_tenant.chaos_row UNION SELECT 'public', job_id FROM public.chaos_row
"""

ATOMIC = ("tests.chaos.jobs.work_atomic", "tests.chaos.jobs.work_completing")
PLACED = ("tests.chaos.jobs.write_row", "tests.chaos.jobs.write_row_again")


def gather(connection: psycopg.Connection[Any], **known: Any) -> Evidence:
    """Read the witness's tables; `known` is what the runner itself knows."""
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
        needs=[Need(*row) for row in connection.execute(NEEDS)],
        statuses=pruned | dict(connection.execute(STATUSES).fetchall()),
        atomic={promise.job for promise in promises if promise.task in ATOMIC},
        urgent={promise.job for promise in promises if promise.priority == URGENT},
        placed={promise.job for promise in promises if promise.task in PLACED},
        processes={worker: pid for worker, pid, _ in processes},
        names={worker: name for worker, _, name in processes},
        rows=dict(rows),
        **known,
    )
