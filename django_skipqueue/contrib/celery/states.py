"""What the carriers of a database hold, and whether their relays and their brokers are there.

Every statement about carriers for operators is here, as a literal. Each reads a bounded number of rows, by an index.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ...conf import settings
from ...console.worker_health import Workforce, state_after
from ...queue.store import Store
from .carrier import carrier_id
from .conf import carriers
from .models import WorkerOfCelery
from .relay import time_limit
from .settings import CarrierSettings

# pages, commands, metrics → for each carrier: name, queues, window; how many jobs are with it, since when the oldest,
# and for how many seconds; how many relays are alive; the seconds since a relay's last heartbeat, and since one last
# reached the broker; how many jobs it has refused. Of all running jobs, `limit` are looked at, those first that were
# claimed first: once, however many carriers there are, and none without a carrier. Index: recover.
CARRIERS_NOW = """
WITH held AS MATERIALIZED (
    SELECT locked_by, count(*) AS number, min(locked_at) AS oldest
    FROM (
        SELECT locked_by, locked_at
        FROM skipqueue_job
        WHERE status = 'running' AND EXISTS (SELECT FROM skipqueue_worker WHERE is_external)
        ORDER BY locked_at
        LIMIT %(limit)s
    ) AS job
    GROUP BY locked_by
)
SELECT
    carrier.name,
    carrier.queues::text,
    carrier.concurrency,
    COALESCE(held.number, 0),
    held.oldest,
    date_part('epoch', statement_timestamp() - held.oldest),
    (
        SELECT count(*)
        FROM skipqueue_celery_worker AS relay JOIN skipqueue_worker AS worker ON worker.id = relay.worker_id
        WHERE
            relay.relay_of = carrier.name
            AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s)
    ),
    date_part('epoch', statement_timestamp() - carrier.heartbeat_at),
    date_part('epoch', statement_timestamp() - beside.reached_at),
    beside.refused
FROM
    skipqueue_worker AS carrier
    JOIN skipqueue_celery_worker AS beside ON beside.worker_id = carrier.id
    LEFT JOIN held ON held.locked_by = carrier.id
WHERE carrier.is_external
ORDER BY carrier.name
LIMIT 200
"""

# doctor → the jobs that a carrier has held for longer than `seconds`, the longest first, with their own time limits. Of
# all jobs that were claimed that long ago, 5,000 are looked at. Index: recover.
HELD_FOR_LONG = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age, timeout
FROM (
    SELECT id, task, locked_by, locked_at, timeout
    FROM skipqueue_job
    WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE locked_by = %(carrier_id)s
ORDER BY locked_at
LIMIT 1000
"""


MOST_RUNNING = 100_000
"""Running jobs that are looked at: the largest window."""

DELIVERIES = 3
"""How often the broker delivers a job at most."""


@dataclass(frozen=True)
class CarrierNow:
    name: str
    queues: tuple[str, ...]
    """The queues whose jobs it runs, by the settings of the relay that wrote its row last."""
    window: int
    held: int
    """How many jobs are with it."""
    oldest: datetime | None
    """Since when the oldest of them is with it."""
    oldest_seconds: float | None
    relays: int
    """How many of its relays do not count as dead."""
    heartbeat_age: float
    """Seconds since a relay was last alive."""
    reached_age: float | None
    """Seconds since a relay last reached the broker; `None`: none ever has."""
    refused: int
    """How many jobs it has not taken, in total: its queue was full, or gone."""

    @property
    def is_reachable(self) -> bool | None:
        """Whether a relay reaches the broker; `None`: no relay is alive, and nobody knows."""
        if not self.relays:
            return None
        return self.reached_age is not None and state_after(timedelta(seconds=self.reached_age)) == "live"


def carriers_now(store: Store) -> list[CarrierNow]:
    """The carriers that relays have ever served in this database, by name.

    One that is not in the settings any more is among them as long as it holds jobs.
    """
    limits = {"limit": MOST_RUNNING, "worker_timeout": settings.worker_timeout}
    rows = store.rows(CARRIERS_NOW, limits)
    found = (CarrierNow(name, tuple(map(str, json.loads(queues))), *row) for name, queues, *row in rows)
    return [carrier for carrier in found if carrier.held or carrier.name in carriers()]


def relay_names(store: Store, worker_ids: Collection[str]) -> dict[str, str]:
    """The carriers of those of these workers that are relays, by the id of the worker."""
    rows = WorkerOfCelery.objects.using(store.alias).filter(pk__in=worker_ids).exclude(relay_of="")
    return dict(rows.values_list("pk", "relay_of"))


def has_relay(name: str, workforce: Workforce) -> bool:
    """Whether a relay of this carrier is among the workers, and not dead."""
    without_slots = [worker.id for worker in workforce.not_dead if not worker.slots]
    return bool(without_slots) and name in relay_names(Store.default(), without_slots).values()


def overdue_jobs(store: Store, carrier: CarrierSettings) -> Iterator[tuple[int, str, str, float]]:
    """The jobs whose outcome the carrier should have sent long ago: id, task, holder and seconds, the longest first.

    After `wait` seconds a job comes back unless a worker has it, and each of `DELIVERIES` workers may take as long as
    the time limit of the job.
    """
    parameters = {"seconds": carrier.wait, "carrier_id": carrier_id(carrier.name)}
    for job_id, task, holder, age, timeout in store.rows(HELD_FOR_LONG, parameters):
        if age > carrier.wait + DELIVERIES * time_limit(task, timeout):
            yield job_id, task, holder, age
