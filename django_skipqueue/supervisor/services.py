"""The services of a supervisor that need only a `Store`: `Admit`, `PruneJobs`, and the services of parts.

`Admit` admits waiting jobs to their queues. `PruneJobs` deletes finished jobs after their retention, or lets a part
move them. A row that cannot be deleted does not keep other rows from being deleted: if a batch fails, or takes too
long, the next batch is half as large, down to one row. If a single row fails, it is logged, and skipped for an hour.
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
    """The functions that make the watching services of all parts: see `Part.watches`."""
    return tuple(watch for part in installed_parts() for watch in part.watches)


def services() -> tuple[Callable[[Store], Service], ...]:
    """The functions that make the services of the core and of all parts."""
    return (Admit, *(service for part in installed_parts() for service in part.services), PruneJobs)


DUE_CHECK = 1.0
"""The seconds until the next check while jobs are scheduled. If a job is due earlier, the interval is shorter."""

UNSCHEDULED_CHECK = SOON
"""The seconds until the next check while no job is scheduled. A notification announces jobs that are due earlier."""

LEAST_DUE_CHECK = 0.01
"""The least number of seconds between two checks, however many notifications arrive."""


class Admit(Periodic):
    """A service that admits jobs at all gates, when a job is due or when a limit may have room."""

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
        elif self._store.admit().has_changed_jobs:
            interval = 0.0
        else:  # another transaction has locked the due job, or no limit has room
            next_due = self._store.next_due() or 0.0
            interval = min(next_due, DUE_CHECK) if next_due > 0 else DUE_CHECK
        self.run_again_in(interval)

    def notified(self, payloads: Collection[str]) -> None:
        """If a job is due soon or may be admitted, check at once, unless this service waits after an error."""
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
"""The seconds between two batches. If a retention is shorter, there is one batch per second."""

SKIPPED_SECONDS = 3600.0
"""For how many seconds a row that could not be pruned is skipped."""

MOST_SKIPPED = 10_000
"""The most skipped rows that are remembered."""

ROW_ERROR_STATES = ("22", "23", "54", "55", "57014", "P0")
"""How the SQLSTATEs of errors begin that a single bad row can cause: data, constraints (such as a foreign key to a job,
or a month without a partition), limits, locks, a statement timeout, and errors that triggers raise. After such an error
the batch is halved. All other errors concern all rows."""


class PruneJobs(Periodic):
    """A service that prunes finished jobs, one batch per run."""

    name = "prune"

    def __init__(self, store: Store) -> None:
        self._pruner = Pruner(store, grace=max((part.prune_grace for part in installed_parts()), default=0.0))

    def run(self, now: float) -> None:
        self._pruner.batch()
        retentions = [settings.retention_of(status) for status in FINISHED_STATUSES]
        is_short = any(
            retention is not None and retention.total_seconds() < PRUNE_JOBS_SECONDS for retention in retentions
        )
        interval = 1.0 if is_short else PRUNE_JOBS_SECONDS
        self.run_again_in(0.0 if self._pruner.has_more else interval)


class Pruner:
    """Prunes jobs batch by batch. Not for use in a transaction, which a failed batch would break."""

    def __init__(self, store: Store, *, grace: float = 0.0) -> None:
        """grace: the seconds for which a job is kept after its retention."""
        self.has_more = False
        """Whether there may be more jobs to prune after the last batch."""
        self._store = store
        self._grace = grace
        self._limit = BATCH_ROWS
        self._skipped: dict[int, float] = {}  # by job id: until when the row is skipped, by the monotonic clock
        self._before = [part.before_prune(store) for part in installed_parts() if part.before_prune]

    def batch(self) -> dict[str, int]:
        """Prune one batch. Returns the number of pruned jobs, by status.

        Raises a `DatabaseError` only if a single bad row cannot be its cause.
        """
        for before_prune_function in self._before:
            before_prune_function()
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
        # A job may have been chosen twice, by its own retention and by the retention of its status. So if at least half
        # of the limit was pruned, there may be more jobs.
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
        self.has_more = len(self._skipped) < MOST_SKIPPED  # otherwise the first skipped rows would be tried forever
