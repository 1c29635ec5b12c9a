"""The jobs of limits that this worker has claimed, by key. Those that it has claimed ahead wait here for a permit.

A worker that holds permits of a key claims more of its jobs than it has permits. They begin one after the other, each
in the place of one that has ended, before the database knows of that: a permit is passed on without a round trip.

Invariant: of the jobs of a key, no more run here than this worker has permits; and it never counts more permits than it
has leases of the key's jobs. The database counts the leases. So whatever it gives to others, the limit holds: the
number of leases of a worker falls below that of its permits only together with it.

`ClaimAhead` decides which jobs are claimed ahead. Long jobs are not: another worker may have a free slot for them.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from ...values.counting import Recent
from ...values.records import Attempt, ClaimedJob, LeaseRef
from ...worker.in_exchange import BeginOrder
from .claim import AheadWish

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
        """Note claimed jobs; `ahead`: without a permit."""
        for job in jobs:
            if job.permit_key is not None:
                self._lines.setdefault(job.permit_key, Line()).claimed(job, permits=0 if ahead else 1)

    def gone(self, jobs: Iterable[ClaimedJob]) -> None:
        """Forget jobs that were settled, released or lost. Call `claimed` first for those claimed in their place."""
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
        """Returns the jobs that may begin now: this one, if it has no limit."""
        line = self.get(job.permit_key)
        return line.enter(job) if line else [job]

    def follow(self, job: ClaimedJob) -> ClaimedJob | None:
        """This job has ended: returns the one that begins in its place, if any. Called in the thread of the job."""
        line = self.get(job.permit_key)
        return line.leave(job.ref) if line else None

    def withdrawn(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that these were taken out of their runners before they began."""
        for job in jobs:
            if line := self.get(job.permit_key):
                line.withdrawn(job.ref)

    def withdraw(self, *, since: float | None = None) -> list[ClaimedJob]:
        """Take back the jobs that wait in line; with `since`, of those lines that stand still."""
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
