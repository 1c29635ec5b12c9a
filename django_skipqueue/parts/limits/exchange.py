"""Limits in the exchanges of a worker: between the settle and the claim it admits jobs, and claims some ahead.

A worker that holds permits of a key claims more of its jobs than it has permits. The jobs wait in a line, and begin one
after the other, each in the place of one that has ended, before the database knows of that: a permit is passed on
without a round trip.

Invariant: of the jobs of a key, no more run here than this worker has permits; and it never counts more permits than it
has leases of the key's jobs. The database counts the leases. So whatever it gives to others, the limit holds: the
number of leases of a worker falls below that of its permits only together with it.

`ClaimAhead` decides which jobs are claimed ahead. Long jobs are not: another worker may have a free slot for them.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import DatabaseError

from ...events.events import JobsAdmitted
from ...exceptions import UnknownTask
from ...jobs.registry import registry
from ...queue.gates import gate_after
from ...queue.notify import notify_of_keys, wake
from ...queue.parameters import Admitted, ExchangeResult
from ...values.counting import Recent
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...worker.in_exchange import BeginOrder, InExchange, PartStatements
from ..keyed.sql import queues_with
from .admit import admission
from .claim import CLAIM_AHEAD, CLAIM_OR_ADMIT, AheadWish, ahead_as_values
from .options import TaskLimit

if TYPE_CHECKING:
    from ...queue.store import Store


AHEAD_SECONDS = 0.06
"""A worker claims ahead as many jobs of a key as have ended in this time: some round trips."""

MOST_AHEAD = 400
"""Jobs of one key that wait here, at most."""


class Line:
    """The jobs of one key. Used by the control loop's thread, but for `leave`."""

    def __init__(self) -> None:
        self.leases: set[LeaseRef] = set()
        """Those of its jobs that are neither settled nor released."""
        self.ended = Recent(AHEAD_SECONDS)
        self._changing = threading.Lock()  # guards the following; never held while a job runs
        self._waiting: deque[ClaimedJob] = deque()
        self._permits = 0
        self._begun: set[LeaseRef] = set()  # of the jobs in a runner: one that was given up may end after its line
        self._moved_at = 0.0

    @property
    def permits(self) -> int:
        return self._permits

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def claimed(self, job: ClaimedJob, *, permits: int) -> None:
        """Note the lease of this job, and a permit if the job was claimed with one."""
        with self._changing:
            self.leases.add(job.ref)
            self._permits += permits

    def gone(self, refs: Iterable[LeaseRef], *, unknown: Iterable[LeaseRef] = ()) -> None:
        """Forget leases that were settled, released or lost; `unknown`: nobody knows whether they were settled."""
        with self._changing:
            self.leases.difference_update(refs)
            self._permits = min(self._permits, len(self.leases.difference(unknown)))

    def enter(self, job: ClaimedJob) -> list[ClaimedJob]:
        """Add a job at the end of the line. Returns the jobs that may begin now."""
        with self._changing:
            if not self._waiting:
                self._moved_at = time.monotonic()
            self._waiting.append(job)
            begin = [self._waiting.popleft() for _ in range(min(self._permits - len(self._begun), len(self._waiting)))]
            self._begun.update(job.ref for job in begin)
            return begin

    def leave(self, ref: LeaseRef) -> ClaimedJob | None:
        """This job has ended. Returns the next, which begins in its place. Called in the thread of the job."""
        with self._changing:
            if ref not in self._begun:
                return None
            self._moved_at = time.monotonic()
            self._begun.remove(ref)
            if not self._waiting or len(self._begun) >= self._permits:
                return None
            following = self._waiting.popleft()
            self._begun.add(following.ref)
            return following

    def withdrawn(self, ref: LeaseRef) -> None:
        """Note that this job was taken out of its runner before it began."""
        with self._changing:
            self._begun.discard(ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the jobs that wait; with `since`, if no job has ended from that time on, in monotonic seconds."""
        with self._changing:
            waiting = [] if since is not None and self._moved_at > since else list(self._waiting)
            if waiting:
                self._waiting.clear()
            return waiting


class Lines(BeginOrder):
    """Used by the control loop's thread, but for `follow`."""

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
        """Nobody knows whether these jobs were settled: count no permit that they held."""
        by_key: dict[str, set[LeaseRef]] = {}
        for job in jobs:
            if job.permit_key is not None:
                by_key.setdefault(job.permit_key, set()).add(job.ref)
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


class ClaimAhead:
    """Used by the control loop's thread."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def wishes(self, ending: Iterable[Attempt]) -> list[AheadWish]:
        """What to claim in the transaction that settles these attempts."""
        now, wishes = time.monotonic(), []
        for key, attempts in self._by_key(ending).items():
            line = self.lines.get(key)
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
        """Those of these attempts that free no permit: other jobs of this worker have it already."""
        kept: set[LeaseRef] = set()
        for key, attempts in self._by_key(ending).items():
            line, refs = self.lines.get(key), {attempt.job.ref for attempt in attempts}
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
"""Seconds until a key is tried again whose lock another process had: it has it for the time of one round trip."""

FAIR_DELAY = 0.01
"""Seconds until more jobs of a fair key are admitted after some were claimed. Mostly some have ended before."""


class LimitsInExchange(InExchange):
    """Used by the control loop's thread."""

    def __init__(self, store: "Store", worker_id: str, *, claims_ahead: bool) -> None:
        lines = Lines()
        super().__init__(lines)
        self._store = store
        self._worker_id = worker_id
        self._ahead = ClaimAhead(lines if claims_ahead else Lines())
        self._queues = frozenset(queues_with("concurrency"))
        self._missed: list[str] = []  # keys whose permits another process was counting: to be admitted again
        self._claimed: list[int] = []  # fair jobs: the more run, the more may be queued

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
        self._ahead.lines.unknown(jobs)

    def claimed_ahead(self, answer: ExchangeResult) -> list[ClaimedJob]:
        return claimed_ahead(answer)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        if registry.has_limits and (fair := {task for task in {job.task for job in jobs} if is_fair(task)}):
            self._claimed += [job.id for job in jobs if job.task in fair]
            self.due_at = min(self.due_at, time.monotonic() + FAIR_DELAY)

    def _limited(self, attempts: Sequence[Attempt]) -> list[int]:
        """The ids of the jobs whose tasks or queues have a limit. A supervisor finds those that this process misses."""
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
    """What an exchange sends beside its settle.

    limited: jobs that have ended. After the settle, jobs of their keys, and of `keys`, are admitted.
    ahead: jobs to claim right after the settle, beyond the permits that are free.
    """
    admits = bool(limited or keys)
    if not (admits or ahead):
        return PartStatements()
    claim_ahead = (CLAIM_AHEAD, ahead_as_values(ahead, worker_id=worker_id)) if ahead else None
    admitting = admission(limited, keys, claims=claims) if admits else [None, None]
    return PartStatements([claim_ahead, *admitting], CLAIM_OR_ADMIT if admits else None, admits)


def announced(store: "Store", answer: ExchangeResult) -> Admitted:
    """What an exchange has admitted.

    Notifies other workers if it has admitted more jobs of a queue than it has claimed, and sends the event.
    """
    admitted = Admitted.decode(*answer.between[1:]) if answer.between else Admitted({}, [])
    if admitted.later and (following := gate_after("limit")):
        with suppress(DatabaseError):  # an error here must not lose the result of the exchange
            notify_of_keys(store, following.prefix, admitted.later)
    if admitted.counts:
        with suppress(DatabaseError):  # nor here
            if Counter(admitted.counts) - answer.claimed_by_queue():
                wake(store, admitted.counts)
        store.send(JobsAdmitted(store.alias, admitted.counts))
    return admitted


def claimed_ahead(answer: ExchangeResult) -> list[ClaimedJob]:
    """The jobs that were claimed without a permit of their own, in the order in which they are admitted."""
    rows = answer.between[0] if answer.between else []
    return sorted(answer.jobs(rows), key=lambda job: (-job.priority, job.id))
