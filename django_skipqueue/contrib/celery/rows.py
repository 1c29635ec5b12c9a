"""What a relay writes into rows, beside what a worker does: that of its carrier, and what became of jobs there.

What comes from a broker is written by statements of the core with a further condition, OF_CARRIER.

Invariant: the row of the carrier exists before a job names the carrier, and stays when all relays are gone. Nobody
recovers the jobs of a carrier that has a row: what the carrier has confirmed, it delivers or gives back.

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
from .window import CarriedJobs, Window

# The end of a WHERE: only jobs that the carrier or one of its relays holds. Who can write to the broker can name any
# job with any lease: both are small numbers.
# A carrier holds what its relays have handed over. A relay holds what it has claimed, and an outcome may be quicker
# than the hand-over. The subquery runs only if a row does not name the carrier; the table has a row for each relay.
OF_CARRIER = (
    "\n    AND (job.locked_by = %(carrier_id)s OR job.locked_by IN "
    "(SELECT relay.worker_id FROM skipqueue_celery_worker AS relay WHERE relay.relay_of = %(carrier)s))"
)

# relay, settle → as the statements of the core in whose place the store of a relay sends these: a lease is no secret in
# the broker. Index: the primary key.
GUARDS = guards(OF_CARRIER)

SETTLE_CARRIED, SETTLE_CARRIED_SNOOZES, APPEND_CANCELLED_ERRORS_CARRIED, RELEASE_CARRIED, NOTE_CARRIED_ATTEMPTS = (
    GUARDS.values()
)

# relay → nothing. These jobs of a carrier begin again, after another process that had them is gone: from now on they
# have begun later than they were claimed, which RECOVER_RETURNED looks for. Index: the primary key, in the order of the
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

# relay → as RECOVER: the jobs with these leases that have begun, as NOTE_BEGUN says. The carrier gave them back because
# its workers are gone. Each time counts as a death. Index: recover.
RECOVER_RETURNED = recovering(
    chosen=joined(
        """
        AND (job.id, job.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]))
        AND job.started_at > job.locked_at{only}""",
        only=OF_CARRIER,
    ),
    died="COALESCE(job.deaths, '[]') || to_jsonb(job.locked_by)",
)

# relay, `runrelay --show-topology` → nothing. Writes what the table has of a carrier, and of a relay of it unless that
# is NULL; deletes what it has of workers without a row. Index: the primary keys.
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

# relay → id and lease of the jobs that the carrier has confirmed, and holds from now on. Does not end the lease: an
# outcome may have been quicker, and then the job matches no row here. `locked_by` is in no index, so that the new
# version stays on its page if there is room. Index: the primary key, in the order of the arrays.
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

# reclaim → how many of the jobs that the carrier holds were claimed by this time. Index: recover.
CARRIED_BEFORE = """
SELECT count(*)
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(carrier_id)s AND locked_at <= %(claimed_until)s
"""

# reclaim → the time. Index: none is needed.
CLOCK = "SELECT statement_timestamp()"

# relay → id and lease of the jobs that the carrier held until they were cancelled or discarded by hand, since the last
# look. That raised the lease by one. Index: prune.
CANCELLED = """
SELECT id, lease - 1
FROM skipqueue_job
WHERE
    status = 'discarded'
    AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by = %(carrier_id)s
ORDER BY finished_at DESC
LIMIT %(limit)s
"""

# relay → when the row of the carrier was written first: it tells this database from others that have the same alias.
# Index: the primary key.
CARRIER_SINCE = "SELECT started_at FROM skipqueue_worker WHERE id = %(carrier_id)s"


# The row of the carrier


def home_in(store: Store, settings: CarrierSettings) -> str:
    """The address for the outcomes of this carrier's jobs. Writes the row of the carrier, if there is none."""
    of_carrier = {"carrier_id": carrier_id(settings.name)}
    if not (found := store.rows(CARRIER_SINCE, of_carrier)):
        _write(store, settings)
        found = store.rows(CARRIER_SINCE, of_carrier)
    ((since,),) = found
    return home_of(store.alias, since)


def _write(
    store: Store, carrier: CarrierSettings, relay_id: str | None = None, *, is_reached: bool = False, refused: int = 0
) -> None:
    """Write the row of the carrier, and what is known of it and of its relay beside their rows."""
    id, name = carrier_id(carrier.name), carrier.name
    row = {"id": id, "name": name, "hostname": "", "pid": 0, "queues": list(carrier.queues), "is_external": True}
    store.heartbeat_workers([{**row, "concurrency": carrier.window}])
    seen = {"carrier_id": id, "carrier": name, "relay_id": relay_id, "is_reached": is_reached, "refused": refused}
    store.execute(HEARTBEAT, seen)


class CarrierRow(Periodic):
    """Writes the row, with what only a relay can see. Used by the control loop's thread."""

    name = "carrier_row"
    _next = 0.0

    def __init__(
        self,
        store: Store,
        settings: CarrierSettings,
        connection: CarrierConnection,
        window: Window,
        *,
        relay_id: str,
        interval: float,
    ) -> None:
        self._store, self._connection, self._window = store, connection, window
        self._settings, self._relay_id, self._interval = settings, relay_id, interval
        self._is_reached = False  # by the last heartbeat
        self._refused = 0  # the refusals of the window that the row counts already
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
        """Write the row. Its heartbeat says when a relay was last alive. This relay has its own row already."""
        is_reached, refused = self._connection.is_open, self._window.jobs_refused
        _write(self._store, self._settings, self._relay_id, is_reached=is_reached, refused=refused - self._refused)
        self._is_reached, self._refused = is_reached, refused
        if not self.home:
            self.home = home_in(self._store, self._settings)
        self.is_written = True
        self.run_again_in(self._interval)


# The jobs that the carrier has, and those that it gives back

RELAY_BATCH = 1_000
"""Jobs in one statement."""

LOCKED_DELAY = 0.5
"""Seconds until the next try for jobs whose rows another transaction has locked."""

REFUSED_DELAY = 5.0
"""Seconds until the next try after PostgreSQL has refused the statement."""

DIED = "each worker of the carrier that got the job has died"
"""The reason of such a recovery."""


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
        """Write one batch. A job that had an outcome meanwhile matches no row."""
        refs = self._jobs.confirmed[:RELAY_BATCH]
        locked = self._store.locked(refs) if self._not_before else set()
        free = [ref for ref in refs if ref[0] not in locked]
        values = {**leases_as_values(free), "carrier_id": self._carrier_id}
        rows = self._store.rows(HAND_OVER, values) if free else []
        self._jobs.handed_over(free, len(rows))
        self._not_before = now + LOCKED_DELAY if locked else 0.0

    def refused(self, error: Error) -> None:
        """Try again later: another transaction has probably locked a row."""
        self._not_before = time.monotonic() + LOCKED_DELAY


def recover_returned(store: Store, refs: Collection[LeaseRef]) -> list[RecoveredJob]:
    """Recover those of the jobs with these leases that have begun. The carrier gave all of them back."""
    values = {**leases_as_values(refs), **store.holder, "crashed": False, "reason": DIED, "limit": len(refs)}
    return recover_chosen(store, RECOVER_RETURNED, values)


class TakeBack(Service):
    """Releases or recovers the jobs that the carrier does not have any more. Used by the control loop's thread.

    The broker gives a job back after some of its consumers are gone, and does not say whether one of them has begun it.
    So whoever gets a job that another one had says that before the job begins. A job of which nobody has said it is
    released: its workers may end before they begin anything, again and again.
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
        """Take one batch of each back. Rows that another transaction has locked come later."""
        jobs = self._jobs
        chosen = [list(place)[:RELAY_BATCH] for place in (jobs.begun, jobs.to_recover, jobs.to_release)]
        locked = self._store.locked([ref for refs in chosen for ref in refs])
        begun, returned, released = ([ref for ref in refs if ref[0] not in locked] for refs in chosen)
        if begun:  # first: it decides about those that have come back
            self._store.rows(NOTE_BEGUN, {**leases_as_values(begun), **self._store.holder})
            self._acknowledge([delivery for ref in begun for delivery in jobs.begun.pop(ref)])
        recovered = {job.id for job in recover_returned(self._store, returned)} if returned else set()
        not_begun = [ref for ref in returned if ref[0] not in recovered]
        freed = self._store.release([*released, *not_begun]) if released or not_begun else set()
        if spared := freed.intersection(id for id, _ in not_begun):
            relay_logs.carried_not_begun(self._who, self._connection.carrier.name, len(spared))
        over, taken = [*returned, *released], recovered | freed
        # What was not taken had no valid lease, or was not the carrier's.
        if dropped := [ref[0] for ref in over if ref[0] not in taken and jobs.came_back(ref)]:
            relay_logs.returns_dropped(self._who, self._connection.carrier.name, len(dropped), dropped[0])
        self._acknowledge(jobs.taken_back(over))
        self._not_before = now + LOCKED_DELAY if locked else 0.0

    def _acknowledge(self, deliveries: list[int]) -> None:
        if deliveries and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.acknowledge(deliveries)

    def refused(self, error: Error) -> None:
        self._not_before = time.monotonic() + REFUSED_DELAY


TAKE_BACK_INTERVAL = 1.0
"""Seconds between two looks."""

MOST_REVOKED = 1_000
"""Jobs of one look."""


class RevokeCancelled(Periodic):
    """Asks the carrier not to begin the jobs that were cancelled. One that begins all the same has its outcome dropped.

    Used by the control loop's thread. What was cancelled while no relay looked is not revoked.
    """

    name = "revoke_cancelled"

    def __init__(self, store: Store, connection: CarrierConnection, *, carrier_id: str) -> None:
        self._store, self._connection, self._carrier_id = store, connection, carrier_id

    def run(self, now: float) -> None:
        """Look for the jobs that were cancelled since the last look, or a little before it."""
        values = {"carrier_id": self._carrier_id, "seconds": 2 * TAKE_BACK_INTERVAL, "limit": MOST_REVOKED}
        rows = self._store.rows(CANCELLED, values)
        if rows and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.revoke([(id, lease) for id, lease in rows])
        self.run_again_in(TAKE_BACK_INTERVAL)


# The jobs that the carrier has lost

LOOK_INTERVAL = 30.0
"""Seconds between two looks, while the window is full."""

BROKERS_TIMEOUT = 1_800.0
"""Seconds after which RabbitMQ takes a message back from a worker that has not acknowledged it, by its default."""


def time_limit(task: str, timeout: float | None) -> float:
    """The seconds that an attempt of a carried job may take. `timeout` is that of the job itself."""
    try:
        return timeout or registry.get(task).timeout or BROKERS_TIMEOUT
    except UnknownTask:
        return BROKERS_TIMEOUT


def is_window_lost(store: Store, carrier: CarrierSettings) -> bool:
    """Whether the window is full, and each of its jobs should have ended or come back.

    A job that waits with the broker for longer than `WAIT` comes back, and one that a worker runs ends within its time
    limit. If no job of a full window was handed over within both together, none of them is there any more.
    """
    rows = store.rows(CARRIED_BY_TASK, {"carrier_id": carrier_id(carrier.name)})
    return sum(number for *_, number, _ in rows) >= carrier.window and all(
        youngest > carrier.wait + time_limit(task, timeout) for task, timeout, _, youngest in rows
    )


class LostWindow(Periodic):
    """Logs once that the broker has lost a full window: then no job is handed over, and nothing else says why.

    Used by the control loop's thread.
    """

    name = "lost_window"

    def __init__(
        self, store: Store, carrier: CarrierSettings, connection: CarrierConnection, window: Window, *, who: str
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
        self.run_again_in(LOOK_INTERVAL)


def carriers_in(store: Store) -> set[str]:
    return set(Worker.objects.using(store.alias).filter(is_external=True).values_list("name", flat=True))


@dataclass(frozen=True)
class Reclaim:
    """Takes back what the carrier of this name holds in one database, and was claimed before `since`.

    For the day on which the carrier has lost it. What a relay claims later stays with the carrier, which has it.
    """

    store: Store
    name: str
    since: datetime
    """When it began, by the database's clock."""

    @classmethod
    def begin(cls, store: Store, name: str) -> "Reclaim":
        """Begin now. Changes nothing yet."""
        ((now,),) = store.rows(CLOCK, {})
        return cls(store, name, now)

    def count(self) -> int:
        values = {"carrier_id": carrier_id(self.name), "claimed_until": self.since}
        ((number,),) = self.store.rows(CARRIED_BEFORE, values)
        return int(number)

    def run(self) -> Iterator[int]:
        """Release these jobs, in batches. Yields the number of each batch.

        No attempt is charged. A job whose row another transaction has locked stays with the carrier.
        """
        while released := self.store.release_orphans(carrier_id(self.name), known=[], claimed_until=self.since):
            yield len(released)
