"""The services of a supervisor that need only its store: `Admit`, `PruneJobs`, and the services of parts.

`Supervisor` makes all other services. `Admit` lets jobs into their queues once their gates let them through.
`PruneJobs` deletes finished jobs past their retention, or has a part move them. Invariant: a row that cannot be pruned
keeps no other row from being pruned. If a batch fails, or takes too long, the next batch is half as large, down to one
row. If this row fails alone, it is logged, and skipped for an hour.
"""

import time
from collections.abc import Callable, Collection

from django.db import DatabaseError

from ..conf import settings
from ..events import logs
from ..queue.gates import key_gates, sweep_gates_soon
from ..queue.notify import GATES_PAYLOAD, SCHEDULED_PAYLOAD, SOON, keys_in
from ..queue.parameters import BATCH_ROWS
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.statuses import FINISHED_STATUSES
from ..worker.loop import Periodic, Service


def watches() -> tuple[Callable[[Store, Callable[[], bool]], Service], ...]:
    """Services of the parts: see `Part.watches`."""
    return tuple(watch for part in installed_parts() for watch in part.watches)


def services() -> tuple[Callable[[Store], Service], ...]:
    """The services of the core and of the parts."""
    return (Admit, *(service for part in installed_parts() for service in part.services), PruneJobs)


DUE_CHECK = 1.0
"""Seconds until the next check while jobs are scheduled. A job that is due earlier shortens the interval."""

UNSCHEDULED_CHECK = SOON
"""Seconds until the next check while no job is scheduled. A notification announces a job that is due earlier."""

LEAST_DUE_CHECK = 0.01
"""Seconds between two checks, at least, however many notifications come."""


class Admit(Periodic):
    """Runs the gates when there may be a job to admit: for the gate of the time, when the next job is due."""

    name = "admit"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checked_at = float("-inf")

    def run(self, now: float) -> None:
        self._checked_at = now
        next_due = self._store.next_due()
        if next_due is None:
            interval = UNSCHEDULED_CHECK
        elif next_due > 0:
            interval = min(next_due, DUE_CHECK)
        elif self._store.admit().goes_on:
            interval = 0.0
        else:  # another transaction has locked the due job, for example its discard; or no permit is free
            next_due = self._store.next_due() or 0.0
            interval = min(next_due, DUE_CHECK) if next_due > 0 else DUE_CHECK
        self.run_again_in(interval)

    def notified(self, payloads: Collection[str]) -> None:
        """Check at once: a job is due soon, or may be admitted. An error's back-off is not cut short."""
        if GATES_PAYLOAD in payloads:
            sweep_gates_soon(self._store)
        is_for_gates = SCHEDULED_PAYLOAD in payloads or GATES_PAYLOAD in payloads
        for gate in key_gates():
            if keys := keys_in(payloads, gate.name):
                gate.want(self._store.alias, keys)
                is_for_gates = True
        if is_for_gates and not self.has_failed:
            self.due_at = min(self.due_at, self._checked_at + LEAST_DUE_CHECK)


PRUNE_JOBS_SECONDS = 30.0
"""Seconds between two batches. If a retention is shorter, one second."""

SKIPPED_SECONDS = 3600.0
"""Seconds for which a row that could not be pruned is skipped."""

MOST_SKIPPED = 10_000
"""Skipped rows that are remembered."""

ROW_ERROR_STATES = ("22", "23", "54", "55", "57014", "P0")
"""The first characters of the SQLSTATEs that one bad row can cause: data, constraints (such as a foreign key to a job,
or a month without a partition), limits, locks, a statement timeout, and errors that triggers raise. After one of these
errors the batch is halved. Any other error concerns all rows."""


class PruneJobs(Periodic):
    name = "prune"

    def __init__(self, store: Store) -> None:
        self._pruner = Pruner(store, grace=max((part.prune_grace for part in installed_parts()), default=0.0))

    def run(self, now: float) -> None:
        self._pruner.batch()
        kept = [settings.retention_of(status) for status in FINISHED_STATUSES]
        is_short = any(retention is not None and retention.total_seconds() < PRUNE_JOBS_SECONDS for retention in kept)
        interval = 1.0 if is_short else PRUNE_JOBS_SECONDS
        self.run_again_in(0.0 if self._pruner.has_more else interval)


class Pruner:
    """Prunes one database, a batch at a time. Not for use in a transaction: a failed batch would break it."""

    def __init__(self, store: Store, *, grace: float = 0.0) -> None:
        """grace: the seconds for which a job is kept after its retention."""
        self.has_more = False
        """Whether jobs may be left to prune after the last batch."""
        self._store = store
        self._grace = grace
        self._limit = BATCH_ROWS
        self._skipped: dict[int, float] = {}  # by id: until when, in monotonic seconds
        self._before = [part.before_prune(store) for part in installed_parts() if part.before_prune]

    def batch(self) -> dict[str, int]:
        """Prune one batch. Returns the number of jobs, by status.

        Raises a `DatabaseError` only if no single row can have caused it.
        """
        for prepare in self._before:
            prepare()
        now = time.monotonic()
        newest = list(self._skipped.items())[-MOST_SKIPPED:]
        self._skipped = {job_id: until for job_id, until in newest if until > now}
        try:
            counts = self._store.prune(limit=self._limit, skipped=list(self._skipped), grace=self._grace)
        except DatabaseError as error:
            if not (getattr(error.__cause__, "sqlstate", None) or "").startswith(ROW_ERROR_STATES):
                raise
            self.has_more = True
            self._shrink(error)
            return {}
        # A job past both retentions was chosen twice, so half the limit may already be a full batch.
        self.has_more = 2 * sum(counts.values()) >= self._limit
        self._limit = min(2 * self._limit, BATCH_ROWS)
        return counts

    def _shrink(self, error: DatabaseError) -> None:
        if self._limit > 1:
            self._limit //= 2
            return
        for job_id in self._store.expired(limit=1, skipped=self._skipped, grace=self._grace):
            logs.not_pruned(job_id, error, SKIPPED_SECONDS)
            self._skipped[job_id] = time.monotonic() + SKIPPED_SECONDS
        self.has_more = len(self._skipped) < MOST_SKIPPED  # else the rows skipped first would be tried again for ever
