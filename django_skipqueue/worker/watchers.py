"""Services of a worker that watch for cancelled jobs, orphans and suspects, and whether the process must be replaced.

`CancelCheck` checks only jobs that the worker already held at the previous check. So a short job costs no statement,
and a long job is checked within a second.

An orphan is a job whose row names this worker, but which the worker does not know. A job becomes an orphan if its claim
is committed, but the result is lost with the connection, or if a release skips a row that another transaction has
locked. While this worker lives, no other process recovers its orphans. So the worker releases them itself.

A suspect is a job that was running in two workers, one after the other, when these workers died. It must run alone in a
process. A worker with several slots offers the suspect to its supervisor, which starts a process that takes over the
job (`TakeOver`), and runs no other job. If no process takes over a suspect, the worker puts it back into its queue.
After a process has taken it over, this changes nothing, because the worker's lease has ended.
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
"""Seconds between two checks whether leases are still valid."""


class CancelCheck(Service):
    """A service that interrupts or drops jobs that were cancelled, or taken from this worker by a recovery."""

    name = "cancel_check"

    def __init__(
        self, held: Callable[[], Collection[LeaseRef]], drop_lost: Callable[[Sequence[LeaseRef]], object]
    ) -> None:
        """held: returns all leases of the worker. drop_lost: gets leases, and drops the jobs whose lease was lost."""
        self._held = held
        self.drop_lost = drop_lost
        self._next_check = 0.0
        self._previously_held: set[LeaseRef] = set()

    @property
    def due_at(self) -> float:
        return self._next_check if self._held() else NEVER

    def run(self, now: float) -> None:
        self._next_check = now + CANCEL_CHECK_SECONDS
        held = self._held()
        held_before, self._previously_held = self._previously_held.intersection(held), set(held)
        if held_before:
            self.drop_lost(sorted(held_before))


ORPHAN_CHECK_DELAYS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When to check after the connection is open again, as multiples of the worker timeout. With a worker timeout of 60 s,
the checks come after 0, 1, 6 and 60 s. Later checks come once per worker timeout."""

ORPHAN_CHECK_REFUSED_SECONDS = 60.0
"""The seconds until the next check after a database error, or the worker timeout if that is longer."""


class OrphanCheck(Service):
    """A service that releases orphans. It begins when an orphan may exist."""

    name = "orphan_check"
    due_at = NEVER

    def __init__(self, worker_timeout: float, release_orphans: Callable[[], object]) -> None:
        self._worker_timeout = worker_timeout
        self._release_orphans = release_orphans
        self._delays: list[float] = []  # when to check after `_since`, as multiples of the worker timeout
        self._since = 0.0  # when the first check after the last `expect` ran

    def expect(self, now: float) -> None:
        """Note that an orphan may exist, because the connection broke, or a job to release was locked."""
        self._delays = list(ORPHAN_CHECK_DELAYS)
        self.due_at = now

    def refused(self, error: Error) -> None:
        self.due_at = time.monotonic() + max(self._worker_timeout, ORPHAN_CHECK_REFUSED_SECONDS)

    def run(self, now: float) -> None:
        self._release_orphans()
        if self._delays and self._delays.pop(0) == ORPHAN_CHECK_DELAYS[0]:
            self._since = now
        self.due_at = (
            self._since + self._delays[0] * self._worker_timeout if self._delays else now + self._worker_timeout
        )


SUSPECT_OFFER_SECONDS = 5.0
"""For how many seconds a suspect is offered to the supervisor, which starts a process that takes over the job."""


class Suspects(Service):
    """A service that offers suspects to the supervisor, or puts them back. Used only by the control loop's thread."""

    name = "suspects"
    loop_handles_errors = False  # `InFlightJobs` handles the errors of each statement

    def __init__(self, shared: SharedCounts, put_back: Callable[[list[ClaimedJob]], object]) -> None:
        self._shared = shared
        self._put_back = put_back
        self._offered: list[ClaimedJob] = []  # at most one job
        self._offered_until = NEVER
        self._not_offered: list[ClaimedJob] = []

    @property
    def due_at(self) -> float:
        return 0.0 if self._not_offered else self._offered_until

    def take(self, suspects: list[ClaimedJob], now: float) -> None:
        """Offer the first of these suspects, unless the worker already offers one. The other suspects are put back."""
        for job in suspects:
            if self._offered:
                self._not_offered.append(job)
            else:
                self._offered, self._offered_until = [job], now + SUSPECT_OFFER_SECONDS
                self._shared.offer_suspect(job.ref)

    def run(self, now: float) -> None:
        not_offered, self._not_offered = self._not_offered, []
        expired_offer = self._withdraw_offer() if self._offered_until <= now else []
        self._put_back(expired_offer + not_offered)

    def withdraw(self) -> list[ClaimedJob]:
        not_offered, self._not_offered = self._not_offered, []
        return self._withdraw_offer() + not_offered

    def drop(self, refs: Container[LeaseRef]) -> list[ClaimedJob]:
        """Forget the suspects with these leases, because they were taken over or cancelled."""
        dropped = [job for job in [*self._offered, *self._not_offered] if job.ref in refs]
        self._not_offered = [job for job in self._not_offered if job.ref not in refs]
        if any(job.ref in refs for job in self._offered):
            self._withdraw_offer()
        return dropped

    def _withdraw_offer(self) -> list[ClaimedJob]:
        offered, self._offered, self._offered_until = self._offered, [], NEVER
        self._shared.take_suspect()
        return offered


class TakeOver(Periodic):
    """A service that takes over the suspect for which the supervisor has started this process.

    It runs once, after the worker's row is written, because a job is recovered if its worker has no row.
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
        """taken: called with the job, which this worker now holds and must run.

        gone: called instead if the other worker's lease has ended, because it has put back the job, or because somebody
        has cancelled the job.
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
"""The least number of seconds between an interruption and the replacement of the process, so that several interruptions
share one replacement."""

RECYCLING_LOGGED_AFTER = 60.0
"""This many seconds after an interruption, a log line names the attempts for which the replacement still waits. They
may hang on a lock that the interrupted attempt has left locked."""

QUIET_CHECK_SECONDS = 1.0
"""Seconds between two checks whether an attempt runs for long."""


class Recycling(Service):
    """A service that lets the process be replaced because of its jobs, its memory or an interruption.

    An interruption may come between any two instructions, and may leave a lock locked, or a cache half filled.
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

        log_wait: called with the attempts for which the replacement has waited `RECYCLING_LOGGED_AFTER` seconds.
        """
        self._log_wait = log_wait
        self._logged_for = 0.0  # the time of the interruption for which `log_wait` was called
        self._jobs_done = jobs_done
        self._recycle = recycle
        self._is_decided = False
        self._interrupter = interrupter
        self._previously_running: set[LeaseRef] | None = None
        self._next_quiet_check = 0.0
        self._ends_anyway = options.max_jobs is not None  # do not replace it, as a new process would count from 0
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
        return min(memory_check, self._quiet_check_at())

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
        if self._quiet_check_at() <= now and self._is_quiet(now):
            return "an attempt in it was interrupted"
        return None

    def _quiet_check_at(self) -> float:
        if self._ends_anyway:
            return NEVER
        return max(self._interrupter.interrupted_at + RECYCLING_DELAY, self._next_quiet_check)

    def _is_quiet(self, now: float) -> bool:
        """Return whether all running attempts have begun since the previous check, so that the process can end soon."""
        self._next_quiet_check = now + QUIET_CHECK_SECONDS
        running = self._interrupter.running()
        previously_running, self._previously_running = self._previously_running, running
        if not running or (previously_running is not None and not running & previously_running):
            return True
        interrupted_at = self._interrupter.interrupted_at
        if previously_running and interrupted_at + RECYCLING_LOGGED_AFTER <= now and self._logged_for != interrupted_at:
            self._logged_for = interrupted_at
            self._log_wait(running & previously_running)
        return False


PROC = Path("/proc")

MEBIBYTE = 1024 * 1024


def resident_mb() -> float:
    """Return the memory (resident size) of this process in MiB; on a system without /proc, its maximum so far."""
    size = resident_bytes(os.getpid())
    if size is None:
        largest_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest_size / (MEBIBYTE if sys.platform == "darwin" else 1024)  # in bytes on macOS, else in KiB
    return size / MEBIBYTE


def resident_mb_of(pid: int) -> int | None:
    """Return the memory of a process in whole MiB; `None` on a system without /proc, or if the process is gone."""
    size = resident_bytes(pid)
    return None if size is None else round(size / MEBIBYTE)


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process in bytes; `None` on a system without /proc, or if the process is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
