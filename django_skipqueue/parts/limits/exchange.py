"""Limits in the exchanges of a worker: between the settle and the claim it admits jobs, and claims some jobs ahead.

A worker that holds permits of a key claims more jobs of the key than it has permits. These jobs wait in a line in the
worker's memory. Each begins in the place of a job that has ended, before the database knows of that end: the permit is
passed on without a round trip.

Invariant: no more jobs of a key run in this worker than it has permits, and the worker never counts more permits than
it has leases of the key's jobs. The database counts the leases, and admits jobs for other workers only as far as the
leases leave permits free. So the limit holds: when the worker's leases become fewer than its permits, the worker counts
fewer permits as well.

Long jobs are not claimed ahead: another worker may have a free slot for them.
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
"""The time of some round trips. A worker claims ahead as many jobs of a key as have ended in the last such time."""

MOST_AHEAD = 400
"""The maximum of jobs of one key that wait in the line of a worker."""


class Line:
    """The jobs of one key in this worker. Only the control loop's thread uses it, but for `leave`."""

    def __init__(self) -> None:
        self.leases: set[LeaseRef] = set()
        """The leases of the jobs that are neither settled nor released."""
        self.permits = 0
        """How many permits the worker has. Written while `_changing` is held."""
        self.ended = Recent(CLAIM_AHEAD_SECONDS)
        self._changing = threading.Lock()  # guards the following; never held while a job runs
        self._waiting: deque[ClaimedJob] = deque()
        self._begun: set[LeaseRef] = set()  # of the jobs in a runner: a job that was given up may end after its line
        self._moved_at = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def claimed(self, job: ClaimedJob, *, permits: int) -> None:
        """Note the lease of this job, and a permit if the job was claimed with one."""
        with self._changing:
            self.leases.add(job.ref)
            self.permits += permits

    def gone(self, refs: Iterable[LeaseRef], *, unknown: Iterable[LeaseRef] = ()) -> None:
        """Forget leases that were settled, released or lost; `unknown`: nobody knows whether they were settled."""
        with self._changing:
            self.leases.difference_update(refs)
            self.permits = min(self.permits, len(self.leases.difference(unknown)))

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Add a job at the end of the line. Returns the jobs that may begin now."""
        with self._changing:
            if not self._waiting:
                self._moved_at = time.monotonic()
            self._waiting.append(job)
            begin = [self._waiting.popleft() for _ in range(min(self.permits - len(self._begun), len(self._waiting)))]
            self._begun.update(job.ref for job in begin)
            return begin

    def leave(self, ref: LeaseRef) -> ClaimedJob | None:
        """Note that this job has ended. Returns the next job, which begins in its place. Called in the job's thread."""
        with self._changing:
            if ref not in self._begun:
                return None
            self._moved_at = time.monotonic()
            self._begun.remove(ref)
            if not self._waiting or len(self._begun) >= self.permits:
                return None
            following = self._waiting.popleft()
            self._begun.add(following.ref)
            return following

    def withdrawn(self, ref: LeaseRef) -> None:
        """Note that this job was taken out of its runner before it began."""
        with self._changing:
            self._begun.discard(ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the waiting jobs. With `since`, a monotonic time: only if no job has ended since then."""
        with self._changing:
            waiting = [] if since is not None and self._moved_at > since else list(self._waiting)
            if waiting:
                self._waiting.clear()
            return waiting


class Lines(BeginOrder):
    """The lines of all keys, and the jobs to claim ahead. Only the control loop's thread uses it, but for `follow`."""

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
                self._lines.setdefault(job.permit_key, Line()).claimed(job, permits=0 if ahead else 1)

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            if line := self.get(job.permit_key):
                line.gone([job.ref])
                if not line.leases:
                    del self._lines[job.permit_key or ""]

    def unknown(self, jobs: Iterable[ClaimedJob]) -> None:
        """Count no permit that these jobs held: nobody knows whether they were settled."""
        by_key: defaultdict[str | None, set[LeaseRef]] = defaultdict(set)
        for job in jobs:
            by_key[job.permit_key].add(job.ref)
        for key, refs in by_key.items():
            if line := self.get(key):
                line.gone([], unknown=refs)

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        line = self.get(job.permit_key)
        return line.enter(job) if line else [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        line = self.get(job.permit_key)
        return line.leave(job.ref) if line else None

    def withdrawn(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            if line := self.get(job.permit_key):
                line.withdrawn(job.ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        return [job for line in [*self._lines.values()] for job in line.withdraw(since=since)]

    def wishes(self, ending: Iterable[Attempt]) -> list[AheadWish]:
        """The jobs to claim ahead in the transaction that settles these attempts."""
        now, wishes = time.monotonic(), []
        for key, attempts in self._by_key(ending).items():
            line = self.get(key)
            job = attempts[0].job
            if line is None or any(
                (other.job.task, other.job.queue_name) != (job.task, job.queue_name) for other in attempts
            ):
                continue
            line.ended.add(len(attempts), now)
            most = min(line.ended.count(now), MOST_AHEAD) - line.waiting
            if most > 0 and line.permits > 0:
                wishes.append(AheadWish(key, job.task, job.queue_name, line.permits, most, sorted(line.leases)))
        return wishes

    def keeps_permits(self, ending: Iterable[Attempt]) -> set[LeaseRef]:
        """The leases of the attempts that free no permit, because other jobs of this worker have the permit already."""
        kept: set[LeaseRef] = set()
        for key, attempts in self._by_key(ending).items():
            line, refs = self.get(key), {attempt.job.ref for attempt in attempts}
            if line and len(line.leases - refs) >= line.permits > 0:
                kept |= refs
        return kept

    def _by_key(self, attempts: Iterable[Attempt]) -> Mapping[str, list[Attempt]]:
        by_key: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt.job.permit_key is not None:
                by_key[attempt.job.permit_key].append(attempt)
        return by_key


MISSED_DELAY = 0.002
"""Seconds until the worker tries a key again that another process had locked. A lock lasts for one round trip."""

FAIR_DELAY = 0.01
"""Seconds between a claim of jobs of a fair key and the next admission. By then, some of the jobs have often ended."""


class LimitsInExchange(InExchange):
    """What limits add to the exchanges of one worker. Only the control loop's thread uses it."""

    def __init__(self, store: Store, worker_id: str, *, claims_ahead: bool) -> None:
        lines = Lines()
        super().__init__(lines)
        self._store = store
        self._worker_id = worker_id
        self._ahead = lines if claims_ahead else Lines()
        self._queues = frozenset(queues_with("concurrency"))
        self._missed: list[str] = []  # keys that another process had locked: the next exchange tries them again
        self._claimed: list[int] = []  # fair jobs: the more of them run, the more may be queued

    def statements_of_parts(self, attempts: Sequence[Attempt], *, has_room: bool, claims: bool) -> PartStatements:
        limited = [*{*self._limited(attempts), *self._claimed}]
        self._claimed = []
        ahead = self._ahead.wishes(attempts) if has_room else []
        return limit_statements(limited, self._missed, ahead, claims=claims, worker_id=self._worker_id)

    def answered(self, answer: ExchangeResult) -> None:
        self._missed = announced(self._store, answer).missed
        delay = MISSED_DELAY if self._missed else FAIR_DELAY if self._claimed else NEVER
        self.due_at = time.monotonic() + delay

    def failed(self, jobs: Iterable[ClaimedJob]) -> None:
        self._ahead.unknown(jobs)

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        return claimed_ahead(answer)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        if registry.has_limits and (fair := {task for task in {job.task for job in jobs} if is_fair(task)}):
            self._claimed += [job.id for job in jobs if job.task in fair]
            self.due_at = min(self.due_at, time.monotonic() + FAIR_DELAY)

    def _limited(self, attempts: Sequence[Attempt]) -> list[int]:
        """The ids of the jobs whose tasks or queues have a limit. A supervisor sees to jobs that are missed here."""
        queues = self._queues
        if not (registry.has_limits or queues):
            return []
        tasks = {task for task in {attempt.job.task for attempt in attempts} if registry.is_limited(task)}
        if not (tasks or queues):
            return []
        kept = self._ahead.keeps_permits(attempts)
        jobs = (attempt.job for attempt in attempts if attempt.job.ref not in kept)
        return [job.id for job in jobs if job.queue_name in queues or job.task in tasks]


def is_fair(name: str) -> bool:
    """Whether the task of this name has `fair_by`; False if it is unknown."""
    with suppress(UnknownTask):
        limit = registry.get(name).options.of_part(TaskLimit)
        return limit is not None and limit.fair_by is not None
    return False


def limit_statements(
    limited: Sequence[int], keys: Sequence[str], ahead: Sequence[AheadWish], *, claims: bool, worker_id: str
) -> PartStatements:
    """The statements that an exchange sends beside its settle.

    limited: jobs that have ended. After the settle, jobs of their keys, and of `keys`, are admitted.
    ahead: jobs to claim right after the settle, ahead of their permits.
    """
    admits = bool(limited or keys)
    if not (admits or ahead):
        return PartStatements()
    claim_ahead = (CLAIM_AHEAD, ahead_as_values(ahead, worker_id=worker_id)) if ahead else None
    admitting = admission(limited, keys, claims=claims) if admits else [None, None]
    return PartStatements([claim_ahead, *admitting], CLAIM_OR_ADMIT if admits else None, admits)


def announced(store: Store, answer: ExchangeResult) -> Admitted:
    """Return what an exchange has admitted, and send the event.

    Notifies other workers if the exchange has admitted more jobs of a queue than it has claimed.
    """
    admitted = Admitted.decode(*answer.between[1:]) if answer.between else Admitted({}, [])
    if admitted.later and (following := gate_after("limit")):
        with suppress(DatabaseError):  # an error here must not lose the result of the exchange
            notify_of_keys(store, following.name, admitted.later)
    if admitted.counts:
        with suppress(DatabaseError):  # an error here must not lose it either
            if Counter(admitted.counts) - answer.claimed_by_queue():
                wake(store, admitted.counts)
        store.send(JobsAdmitted(store.alias, admitted.counts))
    return admitted


def claimed_ahead(answer: ExchangeResult) -> list[ClaimedJob]:
    """The jobs that were claimed without a permit of their own, in the order in which they would be admitted."""
    rows = answer.between[0] if answer.between else []
    return sorted(answer.jobs(rows), key=lambda job: (-job.priority, job.id))
