"""The statements of a relay, and its services that send them: the row of its carrier, and the jobs that come back.

Outcomes from a broker go into rows by statements of the core with a further condition, `OF_CARRIER`.

Invariant: the row of the carrier exists before a job names the carrier, and stays when all relays are gone. No
supervisor recovers the jobs of a carrier that has a row: the carrier delivers each confirmed job or gives it back.

Invariant: a row names the carrier only after the carrier has confirmed the job.
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

# The end of a WHERE: only jobs that the carrier or one of its relays holds. Anybody with access to the broker can name
# any job with any lease: both are small numbers.
# A carrier holds the jobs that its relays have handed over. A relay holds the jobs that it has claimed, and an outcome
# may be quicker than the hand-over. The subquery runs only if a row does not name the carrier; the table has a row for
# each relay.
OF_CARRIER = (
    "\n    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN "
    "(SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))"
)

# relay, settle → the results of the statements of the core. The store of a relay sends these in their place, since a
# lease is no secret in the broker. Index: the primary key.
GUARDS = guards(OF_CARRIER)

SETTLE_CARRIED, SETTLE_CARRIED_SNOOZES, APPEND_CANCELLED_ERRORS_CARRIED, RELEASE_CARRIED, NOTE_CARRIED_ATTEMPTS = (
    GUARDS.values()
)

# relay → the ids. Notes that these jobs of a carrier begin again, after another process that had them is gone: now
# their start is later than their claim, which RECOVER_RETURNED looks for. Index: the primary key, in the order of the
# arrays.
NOTE_BEGUN = joined(
    """
UPDATE skipqueue_job AS job
SET started_at = statement_timestamp()
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease{only}
RETURNING job.id
""",
    only=OF_CARRIER,
)

# relay → the rows of RECOVER, for the jobs with these leases that have begun, as NOTE_BEGUN says. The carrier gave them
# back because its workers are gone. Each return counts as a death. Index: recover.
RECOVER_RETURNED = recovering(
    chosen=joined(
        """
        AND (job.id, job.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]))
        AND job.started_at > job.locked_at{only}""",
        only=OF_CARRIER,
    ),
    died="COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by)",
)

# relay, `runrelay --show-topology` → nothing. Writes the row of a carrier, and of a relay unless `relay_id` is NULL.
# Deletes the rows of workers that are gone. Index: the primary keys.
HEARTBEAT = """
WITH gone AS (
    DELETE FROM skipqueue_celery_worker AS of_celery
    WHERE
        of_celery.worker_id <> ALL (ARRAY[%(carrier_id)s, %(relay_id)s]::text[])
        AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.id = of_celery.worker_id)
)
INSERT INTO skipqueue_celery_worker AS written (worker_id, relay_of, reached_at, refused)
SELECT seen.worker_id, seen.relay_of, seen.reached_at, seen.refused
FROM (
    VALUES
        (%(carrier_id)s::text, '', CASE WHEN %(is_reached)s THEN statement_timestamp() END, %(refused)s::bigint),
        (%(relay_id)s::text, %(carrier)s::text, NULL, 0)
) AS seen (worker_id, relay_of, reached_at, refused)
WHERE seen.worker_id IS NOT NULL
ON CONFLICT (worker_id) DO UPDATE SET
    reached_at = COALESCE(excluded.reached_at, written.reached_at),
    refused = written.refused + excluded.refused
WHERE written.relay_of = ''
"""

# relay → id and lease of the jobs that the carrier has confirmed, and holds from now on. The lease stays. If an outcome
# was quicker, the job has another lease, and matches no row here. `locked_by` is in no index, so the new version of the
# row stays on its page if there is room. Index: the primary key, in the order of the arrays.
HAND_OVER = """
UPDATE skipqueue_job AS job
SET locked_by = %(carrier_id)s
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, held.lease
"""

# relay whose window is full, doctor → the tasks and time limits of the jobs that the carrier holds, with the number of
# the jobs, and the seconds since the youngest of them was claimed. Index: recover.
CARRIED_BY_TASK = """
SELECT task, timeout, count(*), date_part('epoch', statement_timestamp() - max(locked_at))
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s
GROUP BY task, timeout
"""

# reclaim → how many jobs the carrier holds that relays claimed by this time. Index: recover.
CARRIED_BEFORE = """
SELECT count(*)
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s AND locked_at <= %(claimed_until)s
"""

# reclaim → the time. Reads no table.
CLOCK_NOW = "SELECT statement_timestamp()"

# relay → id and lease of the jobs that the carrier held until somebody cancelled or discarded them, since the last
# look. The cancellation raised the lease by one. Index: prune.
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

# relay → when a relay wrote the row of the carrier first: by this time, `home_of` marks the database. Index: the
# primary key.
CARRIER_SINCE = "SELECT started_at FROM skipqueue_worker WHERE id = %(carrier_id)s"


# The row of the carrier


def home_in(store: Store, settings: CarrierSettings) -> str:
    """Return the address for the outcomes of this carrier's jobs. Write the row of the carrier, if there is none."""
    of_carrier = {"carrier_id": carrier_id(settings.name)}
    if not (found := store.rows(CARRIER_SINCE, of_carrier)):
        _write_rows(store, settings)
        found = store.rows(CARRIER_SINCE, of_carrier)
    ((since,),) = found
    return home_of(store.alias, since)


def _write_rows(
    store: Store, carrier: CarrierSettings, relay_id: str | None = None, *, is_reached: bool = False, refused: int = 0
) -> None:
    """Write the row of the carrier among the workers, and the rows of the carrier and of its relay in HEARTBEAT."""
    id, name = carrier_id(carrier.name), carrier.name
    row = {"id": id, "name": name, "hostname": "", "pid": 0, "queues": list(carrier.queues), "is_external": True}
    store.heartbeat_workers([{**row, "concurrency": carrier.window}])
    seen = {"carrier_id": id, "carrier": name, "relay_id": relay_id, "is_reached": is_reached, "refused": refused}
    store.execute(HEARTBEAT, seen)


class CarrierRow(Periodic):
    """Writes the row of the carrier as its heartbeat. Used by the control loop's thread."""

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
        self._is_reached = False  # by the last heartbeat
        self._refused = 0  # how many refusals of the window the row has
        self.is_written = False
        """Whether the row exists."""
        self.home = ""
        """The address for the outcomes of the carrier's jobs, made by `home_of`; empty until the row exists."""

    @property
    def due_at(self) -> float:
        is_news = self._connection.is_open and not self._is_reached and not self.has_failed
        return 0.0 if is_news else self._next

    @due_at.setter
    def due_at(self, moment: float) -> None:
        self._next = moment

    def run(self, now: float) -> None:
        """Write the row of the carrier. Its heartbeat says when a relay was last alive."""
        is_reached, refused = self._connection.is_open, self._window.jobs_refused
        _write_rows(self._store, self._settings, self._relay_id, is_reached=is_reached, refused=refused - self._refused)
        self._is_reached, self._refused = is_reached, refused
        if not self.home:
            self.home = home_in(self._store, self._settings)
        self.is_written = True
        self.run_again_in(self._interval)


# The jobs that the carrier has, and the jobs that it gives back

RELAY_BATCH = 1_000
"""Jobs in one statement."""

LOCKED_ROW_DELAY = 0.5
"""Seconds until the next try for jobs whose rows another transaction has locked."""

REFUSED_STATEMENT_DELAY = 5.0
"""Seconds until the next try after PostgreSQL has refused the statement."""

RETURNED_REASON = "each worker of the carrier that got the job has died"
"""The reason of a recovery by RECOVER_RETURNED."""


class HandOver(Service):
    """Writes that the carrier has these jobs. Used by the control loop's thread."""

    name = "hand_over"

    def __init__(self, store: Store, jobs: CarriedJobs, *, carrier_id: str) -> None:
        self._store, self._jobs, self._carrier_id = store, jobs, carrier_id
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        return self._not_before if self._jobs.confirmed else NEVER

    def run(self, now: float) -> None:
        """Write one batch. A job that has had an outcome meanwhile matches no row."""
        refs = self._jobs.confirmed[:RELAY_BATCH]
        locked = self._store.locked(refs) if self._not_before else set()
        free = [ref for ref in refs if ref[0] not in locked]
        values = {**leases_as_values(free), "carrier_id": self._carrier_id}
        rows = self._store.rows(HAND_OVER, values) if free else []
        self._jobs.handed_over(free, len(rows))
        self._not_before = now + LOCKED_ROW_DELAY if locked else 0.0

    def refused(self, error: Error) -> None:
        """Try again later: another transaction has probably locked a row."""
        self._not_before = time.monotonic() + LOCKED_ROW_DELAY


def recover_returned(store: Store, refs: Collection[LeaseRef]) -> list[RecoveredJob]:
    """Recover the jobs with these leases that have begun. The carrier gave the jobs back."""
    values = {**leases_as_values(refs), **store.holder, "crashed": False, "reason": RETURNED_REASON, "limit": len(refs)}
    return recover_chosen(store, RECOVER_RETURNED, values)


class TakeBack(Service):
    """Releases or recovers the jobs that the carrier does not have any more. Used by the control loop's thread.

    The broker gives a job back after some of its consumers are gone, and does not say whether one of them began it. So
    a process that gets the job of another process first sends a note that the job begins. This releases a job without
    such a note: the processes of a carrier may end before they begin anything, again and again.
    """

    name = "take_back"

    def __init__(self, store: Store, jobs: CarriedJobs, connection: CarrierConnection, *, who: str) -> None:
        self._store, self._jobs, self._connection, self._who = store, jobs, connection, who
        self._not_before = 0.0

    @property
    def due_at(self) -> float:
        jobs = self._jobs
        return self._not_before if jobs.begun or jobs.to_release or jobs.to_recover else NEVER

    def run(self, now: float) -> None:
        """Take back one batch of each kind. Rows that another transaction has locked come later."""
        jobs = self._jobs
        chosen = [list(place)[:RELAY_BATCH] for place in (jobs.begun, jobs.to_recover, jobs.to_release)]
        locked = self._store.locked([ref for refs in chosen for ref in refs])
        begun, returned, released = ([ref for ref in refs if ref[0] not in locked] for refs in chosen)
        if begun:  # first, because RECOVER_RETURNED reads it
            self._store.rows(NOTE_BEGUN, {**leases_as_values(begun), **self._store.holder})
            self._connection.acknowledge([delivery for ref in begun for delivery in jobs.begun.pop(ref)])
        recovered = {job.id for job in recover_returned(self._store, returned)} if returned else set()
        not_begun = [ref for ref in returned if ref[0] not in recovered]
        freed = self._store.release([*released, *not_begun]) if released or not_begun else set()
        if spared := freed.intersection(id for id, _ in not_begun):
            relay_logs.carried_not_begun(self._who, self._connection.carrier.name, len(spared))
        over, taken = [*returned, *released], recovered | freed
        # A job that was not taken had no valid lease, or the carrier did not hold it.
        if dropped := [ref[0] for ref in over if ref[0] not in taken and jobs.came_back(ref)]:
            relay_logs.returns_dropped(self._who, self._connection.carrier.name, len(dropped), dropped[0])
        self._connection.acknowledge(jobs.taken_back(over))
        self._not_before = now + LOCKED_ROW_DELAY if locked else 0.0

    def refused(self, error: Error) -> None:
        self._not_before = time.monotonic() + REFUSED_STATEMENT_DELAY


TAKE_BACK_INTERVAL = 1.0
"""Seconds between two checks for cancelled jobs."""

MOST_REVOKED = 1_000
"""The maximum of jobs of one check."""


class RevokeCancelled(Periodic):
    """Asks the carrier not to begin cancelled jobs. If a job begins all the same, the relay drops its outcome.

    Used by the control loop's thread. It does not revoke the jobs that were cancelled while no relay ran.
    """

    name = "revoke_cancelled"

    def __init__(self, store: Store, connection: CarrierConnection, *, carrier_id: str) -> None:
        self._store, self._connection, self._carrier_id = store, connection, carrier_id

    def run(self, now: float) -> None:
        """Look for the jobs that were cancelled since the last check, or a little before."""
        values = {"carrier_id": self._carrier_id, "seconds": 2 * TAKE_BACK_INTERVAL, "limit": MOST_REVOKED}
        rows = self._store.rows(CANCELLED_JOBS, values)
        if rows and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.revoke([(id, lease) for id, lease in rows])
        self.run_again_in(TAKE_BACK_INTERVAL)


# The jobs that the carrier has lost

LOST_WINDOW_INTERVAL = 30.0
"""Seconds between two checks, while the window is full."""

BROKERS_TIMEOUT = 1_800.0
"""Seconds after which RabbitMQ by default takes an unacknowledged message back from a worker."""


def time_limit(task: str, timeout: float | None) -> float:
    """Return the seconds that an attempt of a carried job may take. timeout: the timeout of the job itself."""
    try:
        return timeout or registry.get(task).timeout or BROKERS_TIMEOUT
    except UnknownTask:
        return BROKERS_TIMEOUT


def is_window_lost(store: Store, carrier: CarrierSettings) -> bool:
    """Return whether the window is full, and each of its jobs should have ended or come back.

    The broker gives a job back after `WAIT`, and a job in a worker ends within its time limit. If all jobs of a full
    window are older than both times together, the broker has lost them.
    """
    rows = store.rows(CARRIED_BY_TASK, {"carrier_id": carrier_id(carrier.name)})
    return sum(number for *_, number, _ in rows) >= carrier.window and all(
        youngest > carrier.wait + time_limit(task, timeout) for task, timeout, _, youngest in rows
    )


class LostWindow(Periodic):
    """Logs once that the broker has lost a full window: then the relays hand over no job, and nothing else says why.

    Used by the control loop's thread.
    """

    name = "lost_window"

    def __init__(
        self, store: Store, carrier: CarrierSettings, connection: CarrierConnection, window: CarrierWindow, *, who: str
    ) -> None:
        self._store, self._carrier = store, carrier
        self._connection, self._window = connection, window
        self._who = who
        self._is_lost = False

    def run(self, now: float) -> None:
        looks = self._window.is_full and self._connection.is_open
        was_lost, self._is_lost = self._is_lost, looks and is_window_lost(self._store, self._carrier)
        if self._is_lost and not was_lost:
            relay_logs.carrier_window_lost(self._who, self._carrier.name, self._window.jobs.with_carrier)
        self.run_again_in(LOST_WINDOW_INTERVAL)


def carriers_in(store: Store) -> set[str]:
    return set(Worker.objects.using(store.alias).filter(is_external=True).values_list("name", flat=True))


@dataclass(frozen=True)
class Reclaim:
    """Takes back the jobs that a carrier holds in one database, and that relays claimed before `since`.

    An operator does so after the carrier has lost its jobs. Jobs that a relay claims later stay with the carrier.
    """

    store: Store
    name: str
    since: datetime
    """When the operator began, by the database's clock."""

    @classmethod
    def begin(cls, store: Store, name: str) -> "Reclaim":
        """Begin now, without a change."""
        ((now,),) = store.rows(CLOCK_NOW, {})
        return cls(store, name, now)

    def count(self) -> int:
        values = {"carrier_id": carrier_id(self.name), "claimed_until": self.since}
        ((number,),) = self.store.rows(CARRIED_BEFORE, values)
        return int(number)

    def run(self) -> Iterator[int]:
        """Release the jobs in batches, which costs no attempts. Yield the number of jobs of each batch.

        The carrier keeps the jobs whose rows another transaction has locked.
        """
        while released := self.store.release_orphans(carrier_id(self.name), known=[], claimed_until=self.since):
            yield len(released)
