"""The services of a worker that watch its leases, its orphans, its suspects, and whether the process must be replaced.

Invariant: `CancelCheck` covers the jobs that the worker also held at the previous check, and no other jobs. So a short
job costs no statement, and a long job is checked within a second.

An orphan is a job that this worker holds by the job's row, but not in its memory. A job becomes an orphan if its claim
is committed, but the answer is lost with the connection. The commit may come later than the loss, if the network
delayed the statement. A job also becomes an orphan if a release skips its row, because another transaction has locked
the row. As long as this worker lives, no other process recovers its orphans.

A suspect is a job that was running in two workers, one after the other, when they died. No other job runs in the
process of a suspect. A worker with several slots offers the suspect to its supervisor, which starts a process that
takes the job over (`TakeOver`) and runs no other job. If the supervisor already has a suspect, the worker puts the job
back for some seconds. Invariant: if no process takes a suspect over, the suspect is put back. After a process has taken
it over, putting it back changes nothing, because the worker's lease has ended.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Container, Sequence
from pathlib import Path

from django.db import Error

from ..events.log_format import counted
from ..queue.store import Store
from ..values.records import NEVER, ClaimedJob, LeaseRef
from .attempts.running_attempt import Interrupter
from .loop import Periodic, Service
from .options import WorkerOptions
from .protocol import SharedCounts

CANCEL_CHECK_SECONDS = 0.4
"""Seconds between two checks whether leases are lost."""


class CancelCheck(Service):
    """Drops and interrupts jobs that were cancelled, or taken from this worker by a recovery."""

    name = "cancel_check"

    def __init__(
        self, held: Callable[[], Collection[LeaseRef]], drop_lost: Callable[[Sequence[LeaseRef]], object]
    ) -> None:
        """held: returns all leases of the worker. drop_lost: drops the jobs of the given leases that are lost."""
        self._held = held
        self.drop_lost = drop_lost
        self._next_check = 0.0
        self._seen: set[LeaseRef] = set()

    @property
    def due_at(self) -> float:
        return self._next_check if self._held() else NEVER

    def run(self, now: float) -> None:
        self._next_check = now + CANCEL_CHECK_SECONDS
        held = self._held()
        old, self._seen = self._seen.intersection(held), set(held)
        if old:
            self.drop_lost(sorted(old))


ORPHAN_CHECK_DELAYS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When to check after the connection is open again, in worker timeouts: with a worker timeout of 60 s, after 0, 1, 6
and 60 s. Later checks come once in each worker timeout."""

ORPHAN_CHECK_REFUSED_SECONDS = 60.0
"""Seconds until the next check after a database error, or the worker timeout if it is longer."""


class OrphanCheck(Service):
    """Releases orphans, once one may exist."""

    name = "orphan_check"
    due_at = NEVER

    def __init__(self, worker_timeout: float, release_orphans: Callable[[], object]) -> None:
        self._worker_timeout = worker_timeout
        self._release_orphans = release_orphans
        self._looks: list[float] = []  # the times of the next checks after `_since`, in worker timeouts
        self._since = 0.0

    def expect(self, now: float) -> None:
        """Note that an orphan may exist: the connection broke, or a job to be released was locked."""
        self._looks = list(ORPHAN_CHECK_DELAYS)
        self.due_at = now

    def refused(self, error: Error) -> None:
        self.due_at = time.monotonic() + max(self._worker_timeout, ORPHAN_CHECK_REFUSED_SECONDS)

    def run(self, now: float) -> None:
        self._release_orphans()
        if self._looks and self._looks.pop(0) == ORPHAN_CHECK_DELAYS[0]:
            self._since = now
        self.due_at = self._since + self._looks[0] * self._worker_timeout if self._looks else now + self._worker_timeout


SUSPECT_OFFER_SECONDS = 5.0
"""Seconds that the supervisor gets to start a process that takes a suspect over."""


class Suspects(Service):
    """The suspects that a worker holds. Used by the control loop's thread."""

    name = "suspects"
    loop_handles_errors = False  # `InFlightJobs` handles the errors of each statement

    def __init__(self, shared: SharedCounts, put_back: Callable[[list[ClaimedJob]], object]) -> None:
        self._shared = shared
        self._put_back = put_back
        self._offered: list[ClaimedJob] = []  # one at most
        self._offered_until = NEVER
        self._others: list[ClaimedJob] = []

    @property
    def due_at(self) -> float:
        return 0.0 if self._others else self._offered_until

    def take(self, suspects: list[ClaimedJob], now: float) -> None:
        """Offer the first of these suspects, if the worker offers none. The rest are put back."""
        for job in suspects:
            if self._offered:
                self._others.append(job)
            else:
                self._offered, self._offered_until = [job], now + SUSPECT_OFFER_SECONDS
                self._shared.offer_suspect(job.ref)

    def run(self, now: float) -> None:
        others, self._others = self._others, []
        self._put_back((self._withdraw_offer() if self._offered_until <= now else []) + others)

    def withdraw(self) -> list[ClaimedJob]:
        others, self._others = self._others, []
        return self._withdraw_offer() + others

    def drop(self, refs: Container[LeaseRef]) -> list[ClaimedJob]:
        """Forget the suspects with these leases: a process has taken them over, or somebody has cancelled them."""
        dropped = [job for job in [*self._offered, *self._others] if job.ref in refs]
        self._others = [job for job in self._others if job.ref not in refs]
        if any(job.ref in refs for job in self._offered):
            self._withdraw_offer()
        return dropped

    def _withdraw_offer(self) -> list[ClaimedJob]:
        offered, self._offered, self._offered_until = self._offered, [], NEVER
        self._shared.take_suspect()
        return offered


class TakeOver(Periodic):
    """Takes over the suspect that the supervisor gave to this worker.

    Runs once, after the worker's row is written, because from then on the worker's heartbeat counts.
    """

    name = "take_over"

    def __init__(
        self,
        store: Store,
        suspect: LeaseRef,
        worker_id: str,
        *,
        taken: Callable[[ClaimedJob], object],
        gone: Callable[[], object],
    ) -> None:
        """taken: called with the job, which this worker now holds and has to run.

        gone: called instead if the lease has ended, because the other worker has put the job back or because somebody
        has cancelled it.
        """
        self._store = store
        self._suspect = suspect
        self._worker_id = worker_id
        self._taken = taken
        self._gone = gone

    def run(self, now: float) -> None:
        job = self._store.take_over(self._suspect, worker_id=self._worker_id)
        self.due_at = NEVER
        if job is None:
            self._gone()
        else:
            self._taken(job)


MEMORY_CHECK_SECONDS = 1.0
"""Seconds between two checks of the memory in use."""

RECYCLING_DELAY = 10.0
"""Seconds between an interruption and the replacement of the process, at least: several interruptions share one
replacement."""

RECYCLING_LOGGED_AFTER = 60.0
"""Seconds after an interruption at which a log line names the attempts that the process still waits for. These attempts
may hang on a lock that the interrupted attempt has left taken."""

QUIET_CHECK_SECONDS = 1.0
"""Seconds between two checks of the running attempts."""


class Recycling(Service):
    """Has the process replaced because of `--max-jobs-per-worker`, `--max-memory-mb` or an interruption.

    An interruption is raised between any two instructions: it may leave a lock taken, or a cache half filled.
    """

    name = "recycling"
    loop_handles_errors = False

    def __init__(
        self,
        options: WorkerOptions,
        interrupter: Interrupter,
        *,
        jobs_done: Callable[[], int],
        recycle: Callable[[str], object],
        log_wait: Callable[[set[LeaseRef]], object] = lambda _: None,
    ) -> None:
        """jobs_done: returns the number of settled attempts. recycle: called once, with the reason.

        log_wait: called with the attempts for which an interrupted process has waited for `RECYCLING_LOGGED_AFTER`.
        """
        self._log_wait = log_wait
        self._logged_for = 0.0  # the time of the interruption for which `log_wait` was called
        self._jobs_done = jobs_done
        self._recycle = recycle
        self._is_decided = False
        self._interrupter = interrupter
        self._ran_before: set[LeaseRef] | None = None
        self._next_quiet_check = 0.0
        self._ends_anyway = options.max_jobs is not None  # a new process would count from zero
        self._max_jobs = options.max_jobs_per_worker
        self._max_memory_mb = options.max_memory_mb
        self._next_memory_check = 0.0

    @property
    def due_at(self) -> float:
        if self._is_decided:
            return NEVER
        if self._max_jobs is not None and self._jobs_done() >= self._max_jobs:
            return 0.0
        memory_check = NEVER if self._max_memory_mb is None else self._next_memory_check
        return min(memory_check, self._next_look_for_quiet())

    def run(self, now: float) -> None:
        if reason := self._reason(now):
            self._is_decided = True
            self._recycle(reason)

    def _reason(self, now: float) -> str | None:
        jobs_done = self._jobs_done()
        if self._max_jobs is not None and jobs_done >= self._max_jobs:
            return f"it has run {counted(jobs_done, 'attempt')}"
        if self._max_memory_mb is not None and self._next_memory_check <= now:
            self._next_memory_check = now + MEMORY_CHECK_SECONDS
            if (size := resident_mb()) > self._max_memory_mb:
                return f"it has grown to {size:,.0f} MiB"
        if self._next_look_for_quiet() <= now and self._is_quiet(now):
            return "an attempt in it was interrupted"
        return None

    def _next_look_for_quiet(self) -> float:
        if self._ends_anyway:
            return NEVER
        return max(self._interrupter.interrupted_at + RECYCLING_DELAY, self._next_quiet_check)

    def _is_quiet(self, now: float) -> bool:
        """Whether no attempt runs that already ran at the previous check: then the jobs are short."""
        self._next_quiet_check = now + QUIET_CHECK_SECONDS
        running = self._interrupter.running()
        ran_before, self._ran_before = self._ran_before, running
        if not running or (ran_before is not None and not running & ran_before):
            return True
        interrupted_at = self._interrupter.interrupted_at
        if ran_before and interrupted_at + RECYCLING_LOGGED_AFTER <= now and self._logged_for != interrupted_at:
            self._logged_for = interrupted_at
            self._log_wait(running & ran_before)
        return False


PROC = Path("/proc")

MEBIBYTE = 1024 * 1024


def resident_mb() -> float:
    """The resident size of this process in MiB; on a system without /proc, its maximum so far."""
    size = resident_bytes(os.getpid())
    if size is None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest / MEBIBYTE if sys.platform == "darwin" else largest / 1024  # bytes there, KiB elsewhere
    return size / MEBIBYTE


def resident_mb_of(pid: int) -> int | None:
    """The resident size of a process in whole MiB; `None` on a system without /proc, or if the process is gone."""
    size = resident_bytes(pid)
    return None if size is None else round(size / MEBIBYTE)


def resident_bytes(pid: int) -> int | None:
    """The resident size of a process; `None` on a system without /proc, or if the process is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
