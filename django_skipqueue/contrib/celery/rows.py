"""The statements of a relay, and its services that send them: the carrier's row, and the jobs that come back.

Outcomes from a broker are settled by the core's statements with one more condition, `OF_CARRIER`.

The carrier's row exists before any job names the carrier, and stays when all relays have ended. As long as it exists,
no supervisor recovers the carrier's jobs: the carrier runs each confirmed job or gives it back.

A job's row names the carrier only after the carrier has confirmed the job.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import Error

from ...exceptions import UnknownTask
from ...jobs.registry import registry
from ...models import Worker
from ...queue.fragments import joined
from ...queue.parameters import leases_as_values
from ...queue.recover import recover_chosen, recovering
from ...queue.store import Store, guards
from ...values.records import NEVER, LeaseRef, RecoveredJob
from ...worker.loop import Periodic, Service
from . import logs as relay_logs
from .carrier import CarrierConnection, carrier_id, home_of
from .settings import CarrierSettings
from .window import CarriedJobs, CarrierWindow

# The end of a WHERE clause. With it, a statement only changes jobs that the carrier or one of its relays has: a relay
# has the jobs that it has claimed, until it hands them over, and then the carrier has them. Without it, anybody with
# access to the broker could change any job, because job ids and leases are small numbers that are easy to guess. The
# subquery runs only if the row does not name the carrier: an outcome may arrive before the job's row names the carrier.
# The subquery's table has one row per relay.
OF_CARRIER = (
    "\n    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN "
    "(SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))"
)

# Sent by the relay, settle. These are statements of the core with the condition OF_CARRIER, and they return the same
# columns. A relay sends them instead of the core's statements, because the broker does not keep leases secret. Index:
# the primary key.
GUARDS = guards(OF_CARRIER)

SETTLE_CARRIED, SETTLE_CARRIED_SNOOZES, APPEND_CANCELLED_ERRORS_CARRIED, RELEASE_CARRIED, NOTE_CARRIED_ATTEMPTS = (
    GUARDS.values()
)

# Sent by the relay. Records that these jobs begin again, after the process that had them has died. It sets
# `started_at`, which is then later than `locked_at`; RECOVER_RETURNED checks this. Returns the ids of the jobs. Index:
# the primary key, in the order of the arrays.
NOTE_BEGUN = joined(
    """
UPDATE skipqueue_job AS job
SET started_at = statement_timestamp()
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS begun (id, lease)
WHERE job.id = begun.id AND job.lease = begun.lease{of_carrier}
RETURNING job.id
""",
    of_carrier=OF_CARRIER,
)

# Sent by the relay, for jobs that the carrier gave back because its workers died. Recovers the jobs with these leases
# that NOTE_BEGUN has recorded as begun. Each return counts as a death. Returns the columns of RECOVER. Index: recover.
RECOVER_RETURNED = recovering(
    chosen=joined(
        """
        AND (job.id, job.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]))
        AND job.started_at > job.locked_at{of_carrier}""",
        of_carrier=OF_CARRIER,
    ),
    died="COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by)",
)

# Sent by the relay, `runrelay --show-topology`. Writes the row of a carrier, and also the row of a relay unless
# `relay_id` is NULL. Deletes the rows of workers that no longer exist. Only a carrier's row has an empty `relay_of`; a
# relay's row never changes. Index: the primary keys.
HEARTBEAT = """
WITH deleted_rows AS (
    DELETE FROM skipqueue_celery_worker AS celery_row
    WHERE
        celery_row.worker_id <> ALL (ARRAY[%(carrier_id)s, %(relay_id)s]::text[])
        AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = celery_row.worker_id)
)
INSERT INTO skipqueue_celery_worker AS stored (worker_id, relay_of, reached_at, refused)
SELECT new_row.worker_id, new_row.relay_of, new_row.reached_at, new_row.refused
FROM (
    VALUES
        (%(carrier_id)s::text, '', CASE WHEN %(is_reached)s THEN statement_timestamp() END, %(refused)s::bigint),
        (%(relay_id)s::text, %(carrier)s::text, NULL, 0)
) AS new_row (worker_id, relay_of, reached_at, refused)
WHERE new_row.worker_id IS NOT NULL
ON CONFLICT (worker_id) DO UPDATE SET
    reached_at = COALESCE(excluded.reached_at, stored.reached_at),
    refused = stored.refused + excluded.refused
WHERE stored.relay_of = ''
"""

# Sent by the relay. Writes the carrier's id into the rows of jobs that the carrier has confirmed. Returns their ids and
# leases. A job keeps its lease. If a job's outcome arrived earlier, the job has another lease by now and is not
# updated. `locked_by` is in no index, so the new row version stays on its page if there is room. Index: the primary
# key, in the order of the arrays.
HAND_OVER = """
UPDATE skipqueue_job AS job
SET locked_by = %(carrier_id)s
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS confirmed (id, lease)
WHERE job.id = confirmed.id AND job.lease = confirmed.lease
RETURNING job.id, confirmed.lease
"""

# Sent by the relay whose window is full, the doctor. Groups the carrier's jobs by task and time limit. Returns for each
# group the number of jobs, and the seconds since the latest of them was claimed. Index: recover.
CARRIED_BY_TASK = """
SELECT task, timeout, count(*), date_part('epoch', statement_timestamp() - max(locked_at))
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s
GROUP BY task, timeout
"""

# Sent by reclaim. Returns how many of the carrier's jobs were claimed until this time. Index: recover.
CARRIED_BEFORE = """
SELECT count(*)
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s AND locked_at <= %(claimed_until)s
"""

# Sent by reclaim. Returns the database's time. Reads no table.
CLOCK_NOW = "SELECT statement_timestamp()"

# Sent by the relay. Returns the carrier's jobs that somebody has recently cancelled or discarded: their ids, and the
# leases that the carrier knows. The cancellation raised each lease by one, so one is subtracted. Index: prune.
CANCELLED_JOBS = """
SELECT id, lease - 1
FROM skipqueue_job
WHERE
    status = 'discarded'
    AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by = %(carrier_id)s
ORDER BY finished_at DESC
LIMIT %(limit)s
"""

# Sent by the relay. Returns when a relay first wrote the carrier's row; `home_of` makes a unique mark from this time.
# Index: the primary key.
CARRIER_SINCE = "SELECT started_at FROM skipqueue_worker WHERE id = %(carrier_id)s"


# The row of the carrier


def home_in(store: Store, settings: CarrierSettings) -> str:
    """Return where this carrier's jobs send their outcomes. Write the carrier's row if it is missing."""
    parameters = {"carrier_id": carrier_id(settings.name)}
    if not (rows := store.rows(CARRIER_SINCE, parameters)):
        _write_rows(store, settings)
        rows = store.rows(CARRIER_SINCE, parameters)
    ((since,),) = rows
    return home_of(store.alias, since)


def _write_rows(
    store: Store, carrier: CarrierSettings, relay_id: str | None = None, *, is_reached: bool = False, refused: int = 0
) -> None:
    """Write the carrier's row in the table of workers, and the rows of the carrier and its relay by HEARTBEAT."""
    id, name = carrier_id(carrier.name), carrier.name
    row = {"id": id, "name": name, "hostname": "", "pid": 0, "queues": list(carrier.queues), "is_external": True}
    store.heartbeat_workers([{**row, "concurrency": carrier.window}])
    parameters = {"carrier_id": id, "carrier": name, "relay_id": relay_id, "is_reached": is_reached, "refused": refused}
    store.execute(HEARTBEAT, parameters)


class CarrierRow(Periodic):
    """Writes the carrier's row regularly, as its heartbeat. Only the control loop's thread uses it."""

    name = "carrier_row"
    _next = 0.0

    def __init__(
        self,
        store: Store,
        settings: CarrierSettings,
        connection: CarrierConnection,
        window: CarrierWindow,
        *,
        relay_id: str,
        interval: float,
    ) -> None:
        self._store, self._connection, self._window = store, connection, window
        self._settings, self._relay_id, self._interval = settings, relay_id, interval
        self._is_reached = False  # whether the carrier was reached at the last heartbeat
        self._refused = 0  # how many of the refused jobs are already counted in the row
        self.is_written = False
        """Whether the row exists."""
        self.home = ""
        """The place for the outcomes of the carrier's jobs, made by `home_of`; empty until the row exists."""

    @property
    def due_at(self) -> float:
        was_just_reached = self._connection.is_open and not self._is_reached and not self.has_failed
        return 0.0 if was_just_reached else self._next

    @due_at.setter
    def due_at(self, moment: float) -> None:
        self._next = moment

    def run(self, now: float) -> None:
        """Write the carrier's row. Its heartbeat says when a relay was last alive."""
        is_reached, refused = self._connection.is_open, self._window.jobs_refused
        _write_rows(self._store, self._settings, self._relay_id, is_reached=is_reached, refused=refused - self._refused)
        self._is_reached, self._refused = is_reached, refused
        if not self.home:
            self.home = home_in(self._store, self._settings)
        self.is_written = True
        self.run_again_in(self._interval)


# The jobs that the carrier has, and the jobs that it gives back

RELAY_BATCH = 1_000
"""The maximum number of jobs in one statement."""

LOCKED_ROW_DELAY = 0.5
"""Seconds until the next try after another transaction had locked the rows of jobs."""

REFUSED_STATEMENT_DELAY = 5.0
"""Seconds until the next try after PostgreSQL has refused the statement."""

RETURNED_REASON = "each worker of the carrier that got the job has died"
"""The reason that RECOVER_RETURNED gives for a recovery."""


class HandOver(Service):
    """Writes the carrier's name into the rows of confirmed jobs. Only the control loop's thread uses it."""

    name = "hand_over"

    def __init__(self, store: Store, jobs: CarriedJobs, *, carrier_id: str) -> None:
        self._store, self._jobs, self._carrier_id = store, jobs, carrier_id
        self._try_again_at = 0.0

    @property
    def due_at(self) -> float:
        return self._try_again_at if self._jobs.confirmed else NEVER

    def run(self, now: float) -> None:
        """Update one batch of rows. A job whose outcome has arrived meanwhile is not updated."""
        refs = self._jobs.confirmed[:RELAY_BATCH]
        locked_ids = self._store.locked(refs) if self._try_again_at else set()
        free_refs = [(job_id, lease) for job_id, lease in refs if job_id not in locked_ids]
        values = {**leases_as_values(free_refs), "carrier_id": self._carrier_id}
        rows = self._store.rows(HAND_OVER, values) if free_refs else []
        self._jobs.handed_over(free_refs, len(rows))
        self._try_again_at = now + LOCKED_ROW_DELAY if locked_ids else 0.0

    def refused(self, error: Error) -> None:
        """Try again later, because another transaction has probably locked a row."""
        self._try_again_at = time.monotonic() + LOCKED_ROW_DELAY


def recover_returned(store: Store, refs: Collection[LeaseRef]) -> list[RecoveredJob]:
    """Recover the returned jobs that had already begun."""
    values = {**leases_as_values(refs), **store.holder, "crashed": False, "reason": RETURNED_REASON, "limit": len(refs)}
    return recover_chosen(store, RECOVER_RETURNED, values)


class TakeBack(Service):
    """Releases or recovers jobs that the carrier no longer has. Only the control loop's thread uses it.

    The broker gives a job back after some of its consumers have died, but does not say whether one of them had begun
    it. So a process that gets a job after another process first sends a note that the job begins. A job without such a
    note is only released, because the processes of a carrier may die again and again before they begin anything.
    """

    name = "take_back"

    def __init__(self, store: Store, jobs: CarriedJobs, connection: CarrierConnection, *, who: str) -> None:
        self._store, self._jobs, self._connection, self._relay_name = store, jobs, connection, who
        self._try_again_at = 0.0

    @property
    def due_at(self) -> float:
        jobs = self._jobs
        return self._try_again_at if jobs.begun or jobs.to_release or jobs.to_recover else NEVER

    def run(self, now: float) -> None:
        """Take back one batch each of begun, returned and released jobs. Jobs with locked rows are left for later."""
        jobs = self._jobs
        batches = [list(refs)[:RELAY_BATCH] for refs in (jobs.begun, jobs.to_recover, jobs.to_release)]
        locked_ids = self._store.locked([ref for refs in batches for ref in refs])
        begun_refs, returned_refs, refs_to_release = (
            [(job_id, lease) for job_id, lease in refs if job_id not in locked_ids] for refs in batches
        )
        if begun_refs:  # first, because RECOVER_RETURNED reads what this writes
            self._store.rows(NOTE_BEGUN, {**leases_as_values(begun_refs), **self._store.holder})
            self._connection.acknowledge([delivery for ref in begun_refs for delivery in jobs.begun.pop(ref)])
        recovered_ids = {job.id for job in recover_returned(self._store, returned_refs)} if returned_refs else set()
        not_begun_refs = [(job_id, lease) for job_id, lease in returned_refs if job_id not in recovered_ids]
        released_ids = (
            self._store.release([*refs_to_release, *not_begun_refs]) if refs_to_release or not_begun_refs else set()
        )
        if not_begun_ids := released_ids.intersection(job_id for job_id, _lease in not_begun_refs):
            relay_logs.carried_not_begun(self._relay_name, self._connection.carrier.name, len(not_begun_ids))
        handled_refs, taken_back_ids = [*returned_refs, *refs_to_release], recovered_ids | released_ids
        # If a job was not taken back, its lease was not valid, or the carrier did not have it.
        not_taken_back_refs = [(job_id, lease) for job_id, lease in handled_refs if job_id not in taken_back_ids]
        if dropped_ids := [job_id for job_id, lease in not_taken_back_refs if jobs.came_back((job_id, lease))]:
            relay_logs.returns_dropped(
                self._relay_name, self._connection.carrier.name, len(dropped_ids), dropped_ids[0]
            )
        self._connection.acknowledge(jobs.taken_back(handled_refs))
        self._try_again_at = now + LOCKED_ROW_DELAY if locked_ids else 0.0

    def refused(self, error: Error) -> None:
        self._try_again_at = time.monotonic() + REFUSED_STATEMENT_DELAY


TAKE_BACK_INTERVAL = 1.0
"""Seconds between two checks for cancelled jobs."""

MOST_REVOKED = 1_000
"""The maximum number of jobs that one check revokes."""


class RevokeCancelled(Periodic):
    """Asks the carrier not to begin cancelled jobs. If a job begins anyway, the relay drops its outcome.

    Only the control loop's thread uses it. Jobs that are cancelled while no relay runs are not revoked.
    """

    name = "revoke_cancelled"

    def __init__(self, store: Store, connection: CarrierConnection, *, carrier_id: str) -> None:
        self._store, self._connection, self._carrier_id = store, connection, carrier_id

    def run(self, now: float) -> None:
        """Revoke the jobs that were cancelled since shortly before the last check."""
        values = {"carrier_id": self._carrier_id, "seconds": 2 * TAKE_BACK_INTERVAL, "limit": MOST_REVOKED}
        cancelled_refs = self._store.rows(CANCELLED_JOBS, values)
        if cancelled_refs and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.revoke([(job_id, lease) for job_id, lease in cancelled_refs])
        self.run_again_in(TAKE_BACK_INTERVAL)


# The jobs that the carrier has lost

LOST_WINDOW_INTERVAL = 30.0
"""Seconds between two checks, while the window is full."""

BROKERS_TIMEOUT = 1_800.0
"""RabbitMQ by default takes an unacknowledged message back from a worker after this many seconds."""


def time_limit(task: str, timeout: float | None) -> float:
    """Return how many seconds an attempt at the carrier may take. `timeout`: the job's own timeout."""
    try:
        return timeout or registry.get(task).timeout or BROKERS_TIMEOUT
    except UnknownTask:
        return BROKERS_TIMEOUT


def is_window_lost(store: Store, carrier: CarrierSettings) -> bool:
    """Return whether the carrier has its maximum number of jobs, and all of them should have ended or come back.

    The broker gives a job back after `WAIT`, and a job in a worker ends within its time limit. If all jobs of a full
    window are older than the sum of both times, the broker has lost them.
    """
    rows = store.rows(CARRIED_BY_TASK, {"carrier_id": carrier_id(carrier.name)})
    job_count = sum(count for _task, _timeout, count, _youngest_age in rows)
    return job_count >= carrier.window and all(
        youngest_age > carrier.wait + time_limit(task, timeout) for task, timeout, _count, youngest_age in rows
    )


class LostWindow(Periodic):
    """Logs once that the broker has lost all jobs of a full window, the maximum number of jobs that a carrier may have.

    The relays then hand over no more jobs. Only the control loop's thread uses this service.
    """

    name = "lost_window"

    def __init__(
        self, store: Store, carrier: CarrierSettings, connection: CarrierConnection, window: CarrierWindow, *, who: str
    ) -> None:
        self._store, self._carrier = store, carrier
        self._connection, self._window = connection, window
        self._relay_name = who
        self._is_lost = False

    def run(self, now: float) -> None:
        should_check = self._window.is_full and self._connection.is_open
        was_lost, self._is_lost = self._is_lost, should_check and is_window_lost(self._store, self._carrier)
        if self._is_lost and not was_lost:
            relay_logs.carrier_window_lost(self._relay_name, self._carrier.name, self._window.jobs.with_carrier)
        self.run_again_in(LOST_WINDOW_INTERVAL)


def carriers_in(store: Store) -> set[str]:
    return set(Worker.objects.using(store.alias).filter(is_external=True).values_list("name", flat=True))


@dataclass(frozen=True)
class Reclaim:
    """Takes back a carrier's jobs in one database that were claimed before `since`.

    An operator uses it after the carrier has lost its jobs. Jobs that are claimed later stay with the carrier.
    """

    store: Store
    name: str
    since: datetime
    """When the operator began, by the database's clock."""

    @classmethod
    def begin(cls, store: Store, name: str) -> "Reclaim":
        """Read the database's time. Only jobs that were claimed before this time are taken back later."""
        ((now,),) = store.rows(CLOCK_NOW, {})
        return cls(store, name, now)

    def count(self) -> int:
        values = {"carrier_id": carrier_id(self.name), "claimed_until": self.since}
        ((job_count,),) = self.store.rows(CARRIED_BEFORE, values)
        return int(job_count)

    def run(self) -> Iterator[int]:
        """Release the jobs in batches, which costs no attempts. Yield the number of released jobs of each batch.

        Jobs whose rows another transaction has locked stay with the carrier.
        """
        while released := self.store.release_orphans(carrier_id(self.name), known=[], claimed_until=self.since):
            yield len(released)
