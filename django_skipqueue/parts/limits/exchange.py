"""Limits in a worker's exchange, one round trip: between its settle and its claim, admit jobs and claim some ahead.

A worker that holds permits of a key claims more of the key's jobs than it has permits. These extra jobs wait in a line
in the worker's memory. When a running job of the key ends, the next job of the line takes over its permit and begins at
once, before the database knows that the first job has ended. This saves a round trip.

The limit still holds, for two reasons. First, a worker never runs more jobs of a key than it has permits, and never
counts more permits than it has leases of the key's jobs: when it loses leases, it counts fewer permits. Second, the
database counts each lease as one held permit, and admits jobs for other workers only while permits are left.

A worker claims only short jobs ahead, because another worker may have a free slot for a long job.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from django.db import DatabaseError

from ...events.events import JobsAdmitted
from ...exceptions import UnknownTask
from ...jobs.registry import registry
from ...queue.gates import gate_after
from ...queue.notify import notify_of_keys, wake
from ...queue.parameters import Admitted, ExchangeResult
from ...queue.store import Store
from ...values.counting import Recent
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...worker.in_exchange import BeginOrder, InExchange, PartStatements
from ..keyed.sql import queues_with
from .admit import admission
from .claim import CLAIM_AHEAD, CLAIM_OR_ADMIT, AheadWish, ahead_as_values
from .options import TaskLimit

CLAIM_AHEAD_SECONDS = 0.06
"""Seconds, about some round trips. A worker claims ahead as many jobs of a key as have ended in this time."""

MOST_AHEAD = 400
"""The maximum number of one key's jobs that wait in a worker's line."""


class Line:
    """The jobs of one limit's key in this worker: jobs that run, and a line of jobs that wait for their permits.

    Only the control loop's thread uses a line, except for `leave`.
    """

    def __init__(self) -> None:
        self.leases: set[LeaseRef] = set()
        """The leases of the jobs that are neither settled nor released."""
        self.permits = 0
        """The number of permits that this worker has. Written under the lock `_changing`."""
        self.ended = Recent(CLAIM_AHEAD_SECONDS)
        self._changing = threading.Lock()  # guards the attributes below; never held while a job runs
        self._waiting: deque[ClaimedJob] = deque()
        self._running: set[LeaseRef] = set()  # the jobs that a thread or the event loop runs
        self._moved_at = 0.0  # when a job last began to wait in an empty line, or ended

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add_lease(self, job: ClaimedJob, *, permits: int) -> None:
        """Record the lease of a claimed job. `permits`: 1 if the job was claimed with a permit, 0 if ahead."""
        with self._changing:
            self.leases.add(job.ref)
            self.permits += permits

    def remove_leases(self, refs: Iterable[LeaseRef], *, unknown: Iterable[LeaseRef] = ()) -> None:
        """Forget these leases. `unknown`: leases that may have been settled, so that their permits no longer count."""
        with self._changing:
            self.leases.difference_update(refs)
            self.permits = min(self.permits, len(self.leases.difference(unknown)))

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Add a job to the end of the line. Returns the jobs of the line that may begin now."""
        with self._changing:
            if not self._waiting:
                self._moved_at = time.monotonic()
            self._waiting.append(job)
            free_permits = self.permits - len(self._running)
            next_jobs = [self._waiting.popleft() for _ in range(min(free_permits, len(self._waiting)))]
            self._running.update(job.ref for job in next_jobs)
            return next_jobs

    def leave(self, ref: LeaseRef) -> ClaimedJob | None:
        """Record that a job has ended, in its thread. Returns the next job, which takes over the permit."""
        with self._changing:
            if ref not in self._running:
                return None
            self._moved_at = time.monotonic()
            self._running.remove(ref)
            if not self._waiting or len(self._running) >= self.permits:
                return None
            next_job = self._waiting.popleft()
            self._running.add(next_job.ref)
            return next_job

    def remove_running(self, ref: LeaseRef) -> None:
        """Record that the worker took a job back from its thread or event loop before the job began."""
        with self._changing:
            self._running.discard(ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Empty the line and return its jobs. With `since`, a monotonic time, only if no job has ended since then."""
        with self._changing:
            waiting = [] if since is not None and self._moved_at > since else list(self._waiting)
            if waiting:
                self._waiting.clear()
            return waiting


class Lines(BeginOrder):
    """Begins the jobs of each limit's key in turn, by one `Line` for each key of this worker.

    Only the control loop's thread uses the lines, except for `follow`.
    """

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    @property
    def has_waiting(self) -> bool:
        return any(line.waiting for line in self._lines.values())

    def get(self, key: str | None) -> Line | None:
        return None if key is None else self._lines.get(key)

    def claimed(self, jobs: Iterable[ClaimedJob], *, ahead: bool = False) -> None:
        for job in jobs:
            if job.permit_key is not None:
                self._lines.setdefault(job.permit_key, Line()).add_lease(job, permits=0 if ahead else 1)

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            if line := self.get(job.permit_key):
                line.remove_leases([job.ref])
                if not line.leases:
                    del self._lines[job.permit_key or ""]

    def unknown(self, jobs: Iterable[ClaimedJob]) -> None:
        """Stop counting the permits of these jobs, because nobody knows whether the jobs were settled."""
        by_key: defaultdict[str | None, set[LeaseRef]] = defaultdict(set)
        for job in jobs:
            by_key[job.permit_key].add(job.ref)
        for key, refs in by_key.items():
            if line := self.get(key):
                line.remove_leases([], unknown=refs)

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        line = self.get(job.permit_key)
        return line.enter(job) if line else [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        line = self.get(job.permit_key)
        return line.leave(job.ref) if line else None

    def taken_from_runners(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            if line := self.get(job.permit_key):
                line.remove_running(job.ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        return [job for line in [*self._lines.values()] for job in line.withdraw(since=since)]

    def wishes(self, ending: Iterable[Attempt]) -> list[AheadWish]:
        """Return which jobs to claim ahead in the transaction that settles these attempts."""
        now, wishes = time.monotonic(), []
        for key, attempts in self._by_key(ending).items():
            line = self.get(key)
            if line is None:
                continue
            job = attempts[0].job
            tasks_and_queues = {(attempt.job.task, attempt.job.queue_name) for attempt in attempts}
            if len(tasks_and_queues) > 1:  # CLAIM_AHEAD claims jobs of one task and queue per key
                continue
            line.ended.add(len(attempts), now)
            most = min(line.ended.count(now), MOST_AHEAD) - line.waiting
            if most > 0 and line.permits > 0:
                wishes.append(AheadWish(key, job.task, job.queue_name, line.permits, most, sorted(line.leases)))
        return wishes

    def keeps_permits(self, ending: Iterable[Attempt]) -> set[LeaseRef]:
        """Return the leases whose end frees no permit, because another job of this worker has taken it over."""
        keeping: set[LeaseRef] = set()
        for key, attempts in self._by_key(ending).items():
            line, ending_refs = self.get(key), {attempt.job.ref for attempt in attempts}
            if line and len(line.leases - ending_refs) >= line.permits > 0:
                keeping |= ending_refs
        return keeping

    def _by_key(self, attempts: Iterable[Attempt]) -> Mapping[str, list[Attempt]]:
        by_key: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt.job.permit_key is not None:
                by_key[attempt.job.permit_key].append(attempt)
        return by_key


MISSED_DELAY = 0.002
"""Seconds until the worker retries a key that another process had locked. A lock lasts for one round trip."""

FAIR_DELAY = 0.01
"""Seconds from a claim of jobs with `fair_by` to the next admission. Some of the jobs have often ended by then."""


class LimitsInExchange(InExchange):
    """What limits add to one worker's exchanges. Only the control loop's thread uses it."""

    def __init__(self, store: Store, worker_id: str, *, claims_ahead: bool) -> None:
        lines = Lines()
        super().__init__(lines)
        self._store = store
        self._worker_id = worker_id
        self._ahead = lines if claims_ahead else Lines()
        self._queues = frozenset(queues_with("concurrency"))
        self._missed: list[str] = []  # keys that another process had locked: the next exchange retries them
        self._claimed: list[int] = []  # ids of claimed jobs with `fair_by`: for each, one more job may be queued

    def statements_of_parts(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> PartStatements:
        limited_ids = [*{*self._limited_ids(attempts), *self._claimed}]
        self._claimed = []
        ahead = self._ahead.wishes(attempts) if has_room else []
        return limit_statements(limited_ids, self._missed, ahead, claims=claims, worker_id=self._worker_id)

    def answered(self, answer: ExchangeResult) -> None:
        self._missed = announced(self._store, answer).missed
        delay_without_missed = FAIR_DELAY if self._claimed else NEVER
        self.due_at = time.monotonic() + (MISSED_DELAY if self._missed else delay_without_missed)

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        self._ahead.unknown(jobs)

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        return claimed_ahead(answer)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        if registry.has_limits and (fair_tasks := {task for task in {job.task for job in jobs} if is_fair(task)}):
            self._claimed += [job.id for job in jobs if job.task in fair_tasks]
            self.due_at = min(self.due_at, time.monotonic() + FAIR_DELAY)

    def _limited_ids(self, attempts: Sequence[Attempt]) -> list[int]:
        """Return the ids of the jobs with a limit. If one is missing, a supervisor admits the next job of its key."""
        queues = self._queues
        if not (registry.has_limits or queues):
            return []
        tasks = {task for task in {attempt.job.task for attempt in attempts} if registry.is_limited(task)}
        if not (tasks or queues):
            return []
        keeping_permits = self._ahead.keeps_permits(attempts)
        jobs = (attempt.job for attempt in attempts if attempt.job.ref not in keeping_permits)
        return [job.id for job in jobs if job.queue_name in queues or job.task in tasks]


def is_fair(name: str) -> bool:
    """Return whether the task with this name has the option `fair_by`; False if there is no such task."""
    with suppress(UnknownTask):
        limit = registry.get(name).options.of_part(TaskLimit)
        return limit is not None and limit.fair_by is not None
    return False


def limit_statements(
    limited_ids: Sequence[int], keys: Sequence[str], ahead: Sequence[AheadWish], *, claims: bool, worker_id: str
) -> PartStatements:
    """Return the statements that an exchange sends after its settle.

    limited_ids: the ids of jobs with a limit that have just ended or been claimed. Waiting jobs of their keys, and of
    `keys`, are admitted.
    ahead: jobs to claim right after the settle, before a permit of their key is free.
    """
    admits = bool(limited_ids or keys)
    if not (admits or ahead):
        return PartStatements()
    claim_ahead = (CLAIM_AHEAD, ahead_as_values(ahead, worker_id=worker_id)) if ahead else None
    admitting = admission(limited_ids, keys, claims=claims) if admits else [None, None]
    return PartStatements([claim_ahead, *admitting], CLAIM_OR_ADMIT if admits else None, admits)


def announced(store: Store, answer: ExchangeResult) -> Admitted:
    """Return which jobs an exchange has admitted, and send the event `JobsAdmitted`.

    Notifies other workers if the exchange has admitted more jobs of a queue than it has claimed.
    """
    # The results of `limit_statements`: the jobs claimed ahead, then what `Admitted.decode` takes.
    admitted = Admitted.decode(*answer.between[1:]) if answer.between else Admitted({}, [])
    if admitted.later and (next_gate := gate_after("limit")):
        with suppress(DatabaseError):  # an error here must not lose the result of the exchange
            notify_of_keys(store, next_gate.name, admitted.later)
    if admitted.counts:
        with suppress(DatabaseError):  # nor must an error here lose the result
            if Counter(admitted.counts) - answer.claimed_by_queue():
                wake(store, admitted.counts)
        store.send(JobsAdmitted(store.alias, admitted.counts))
    return admitted


def claimed_ahead(answer: ExchangeResult) -> list[ClaimedJob]:
    """Return the jobs that were claimed before a permit was free, in the order in which they would be admitted."""
    claim_ahead_rows = answer.between[0] if answer.between else []
    return sorted(answer.jobs(claim_ahead_rows), key=lambda job: (-job.priority, job.id))
