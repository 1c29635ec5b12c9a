"""Writes into the rows what became of jobs at the carrier: those it has, and those it gives back.

Invariant: a row names the carrier only after the carrier has confirmed the job.

`manage.py runrelay --reclaim` takes the jobs back that a carrier holds, for the day on which the carrier has lost them.

Invariant: what a relay claims after the beginning stays with the carrier, which has it.
"""

import time
from collections.abc import Collection, Sequence

from django.db import Error

from ...queue.parameters import leases_as_values
from ...queue.recover import recover_chosen
from ...queue.store import Store
from ...values.records import NEVER, LeaseRef, RecoveredJob
from ...worker.loop import Service
from . import logs as relay_logs
from . import sql
from .connection import CarrierConnection
from .window import CarriedJobs

BATCH = 1_000
"""Jobs in one statement."""

LOCKED_DELAY = 0.5
"""Seconds until the next try for jobs whose rows another transaction has locked."""

DIED = "each worker of the carrier that got the job has died"
"""The reason of such a recovery."""

REFUSED_DELAY = 5.0
"""Seconds until the next try after PostgreSQL has refused the statement."""


class HandOver(Service):
    """Writes that the carrier has these jobs. Used by the control loop's thread."""

    name = "hand_over"

    def __init__(self, store: Store, jobs: CarriedJobs, *, carrier_id: str) -> None:
        self._store = store
        self._jobs = jobs
        self._carrier_id = carrier_id
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        return self._not_before if self._jobs.confirmed else NEVER

    def run(self, now: float) -> None:
        """Write one batch. A job that had an outcome meanwhile matches no row."""
        refs = self._jobs.confirmed[:BATCH]
        locked = self._store.locked(refs) if self._not_before else set()
        free = [ref for ref in refs if ref[0] not in locked]
        rows = (
            self._store.rows(sql.HAND_OVER, leases_as_values(free) | {"carrier_id": self._carrier_id}) if free else []
        )
        self._jobs.handed_over(free, len(rows))
        self._not_before = now + LOCKED_DELAY if locked else 0.0

    def refused(self, error: Error) -> None:
        """Try again later: another transaction has probably locked a row."""
        self._not_before = time.monotonic() + LOCKED_DELAY


def recover_returned(store: Store, refs: Collection[LeaseRef]) -> list[RecoveredJob]:
    """Recover those of the jobs with these leases that have begun. The carrier gave all of them back."""
    values = {**leases_as_values(refs), **store.holder, "crashed": False, "reason": DIED, "limit": len(refs)}
    return recover_chosen(store, sql.RECOVER_RETURNED, values)


class TakeBack(Service):
    """Releases or recovers the jobs that the carrier does not have any more. Used by the control loop's thread.

    The broker gives a job back after some of its consumers are gone, and does not say whether one of them has begun it.
    So whoever gets a job that another one had says that before the job begins. A job of which nobody has said it is
    released: its workers may end before they begin anything, again and again.
    """

    name = "take_back"

    def __init__(self, store: Store, jobs: CarriedJobs, connection: CarrierConnection, *, who: str) -> None:
        self._store = store
        self._who = who
        self._jobs = jobs
        self._connection = connection
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        jobs = self._jobs
        return self._not_before if jobs.begun or jobs.to_release or jobs.to_recover else NEVER

    def run(self, now: float) -> None:
        """Take one batch of each back. Rows that another transaction has locked come later."""
        jobs = self._jobs
        chosen = [list(place)[:BATCH] for place in (jobs.begun, jobs.to_recover, jobs.to_release)]
        locked = self._store.locked([ref for refs in chosen for ref in refs])
        begun, returned, released = ([ref for ref in refs if ref[0] not in locked] for refs in chosen)
        if begun:  # first: it decides about those that have come back
            self._store.rows(sql.NOTE_BEGUN, {**leases_as_values(begun), **self._store.holder})
            self._acknowledge([delivery for ref in begun for delivery in jobs.begun.pop(ref)])
        recovered = self._recover(returned) if returned else set()
        not_begun = [ref for ref in returned if ref[0] not in recovered]
        freed = self._store.release([*released, *not_begun]) if released or not_begun else set()
        if spared := freed.intersection(id for id, _ in not_begun):
            relay_logs.carried_not_begun(self._who, self._connection.carrier.name, len(spared))
        self._taken_back([*returned, *released], recovered | freed)
        self._not_before = now + LOCKED_DELAY if locked else 0.0

    def _recover(self, returned: Sequence[LeaseRef]) -> set[int]:
        return {job.id for job in recover_returned(self._store, returned)}

    def _taken_back(self, refs: Sequence[LeaseRef], taken: Collection[int]) -> None:
        """Acknowledge the deliveries of these jobs. Those in `taken` had a valid lease, and were the carrier's."""
        dropped = [ref[0] for ref in refs if ref[0] not in taken and self._jobs.came_back(ref)]
        if dropped:
            relay_logs.returns_dropped(self._who, self._connection.carrier.name, len(dropped), dropped[0])
        self._acknowledge(self._jobs.taken_back(refs))

    def _acknowledge(self, deliveries: list[int]) -> None:
        if deliveries and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.acknowledge(deliveries)

    def refused(self, error: Error) -> None:
        self._not_before = time.monotonic() + REFUSED_DELAY
