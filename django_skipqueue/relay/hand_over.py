"""Writes into the rows what became of jobs at the carrier: those it has, and those it gives back.

Invariant: a row names the carrier only after the carrier has confirmed the job.
"""

import time

from django.db import Error

from ..runtime.service import Service
from ..store import Store
from ..store.parameters import leases_as_values
from ..values.times import NEVER
from . import sql
from .carried_jobs import CarriedJobs
from .connection import CarrierConnection

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


class TakeBack(Service):
    """Releases or recovers the jobs that the carrier does not have any more. Used by the control loop's thread."""

    name = "take_back"

    def __init__(self, store: Store, jobs: CarriedJobs, connection: CarrierConnection) -> None:
        self._store = store
        self._jobs = jobs
        self._connection = connection
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        return self._not_before if self._jobs.to_release or self._jobs.to_recover else NEVER

    def run(self, now: float) -> None:
        """Take one batch of each back. Rows that another transaction has locked come later."""
        to_release, to_recover = list(self._jobs.to_release)[:BATCH], list(self._jobs.to_recover)[:BATCH]
        locked = self._store.locked([*to_release, *to_recover])
        if released := [ref for ref in to_release if ref[0] not in locked]:
            self._store.release(released)
        if recovered := [ref for ref in to_recover if ref[0] not in locked]:
            self._store.recover_returned(recovered, reason=DIED)
        deliveries = self._jobs.taken_back([*released, *recovered])
        if deliveries and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.acknowledge(deliveries)
        self._not_before = now + LOCKED_DELAY if locked else 0.0

    def refused(self, error: Error) -> None:
        self._not_before = time.monotonic() + REFUSED_DELAY
