"""Keeps suspects from running beside other jobs: those jobs that ran in two workers in a row when these died.

A worker with several slots offers a suspect to its supervisor, which starts a process that takes the job over
(`TakeOver`) and runs it alone. If the supervisor has another suspect, the worker puts the job back for some seconds.

Invariant: a suspect that nobody takes over is put back. To put back one that was taken over changes nothing, because
its lease has ended.
"""

from collections.abc import Callable, Container

from ..queue.store import Store
from ..values.records import NEVER, ClaimedJob, LeaseRef
from .loop import Periodic, Service
from .protocol import Standby

OFFER_TIME = 5.0
"""Seconds that the supervisor gets to start a process that takes a suspect over."""


class Suspects(Service):
    """The suspects that a worker holds. Used by the control loop's thread."""

    name = "suspects"
    loop_handles_errors = False  # `InFlightJobs` handles the errors of each statement

    def __init__(self, standby: Standby, put_back: Callable[[list[ClaimedJob]], object]) -> None:
        self._standby = standby
        self._put_back = put_back
        self._offered: list[ClaimedJob] = []  # one at most
        self._offered_until = NEVER
        self._others: list[ClaimedJob] = []

    @property
    def due_at(self) -> float:
        return 0.0 if self._others else self._offered_until

    def take(self, suspects: list[ClaimedJob], now: float) -> None:
        """Offer the first, if none is offered. The others are put back."""
        for job in suspects:
            if self._offered:
                self._others.append(job)
            else:
                self._offered, self._offered_until = [job], now + OFFER_TIME
                self._standby.offer_suspect(job.ref)

    def run(self, now: float) -> None:
        ended = self._withdraw_offer() if self._offered_until <= now else []
        others, self._others = self._others, []
        self._put_back(ended + others)

    def withdraw(self) -> list[ClaimedJob]:
        others, self._others = self._others, []
        return self._withdraw_offer() + others

    def drop(self, refs: Container[LeaseRef]) -> list[ClaimedJob]:
        """Forget those with these leases: a process has taken them over, or somebody has cancelled them."""
        dropped = [job for job in [*self._offered, *self._others] if job.ref in refs]
        self._others = [job for job in self._others if job.ref not in refs]
        if any(job.ref in refs for job in self._offered):
            self._withdraw_offer()
        return dropped

    def _withdraw_offer(self) -> list[ClaimedJob]:
        offered, self._offered, self._offered_until = self._offered, [], NEVER
        self._standby.take_suspect()
        return offered


class TakeOver(Periodic):
    """Runs once, after the worker's row is written: from then on its heartbeat counts for the job."""

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
        """`gone` is called if the lease has ended: the other worker was too quick, or somebody cancelled the job."""
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
