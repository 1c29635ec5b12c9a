"""What the carriers of a database hold, and whether their relays and their brokers are there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..conf import settings
from ..operators.worker_health import state_after
from ..relay.carrier import carrier_id
from ..relay.lost_window import time_limit
from ..setting_forms.carriers import CarrierSettings, carrier_of
from ..store import Store
from . import sql

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
    rows = store.rows(sql.CARRIERS_NOW, limits)
    found = (CarrierNow(name, tuple(map(str, json.loads(queues))), *row) for name, queues, *row in rows)
    return [carrier for carrier in found if carrier.held or carrier.name in settings.carriers]


def carrier_for(queue_name: str) -> CarrierSettings | None:
    """The carrier of this queue, by the settings; `None`: workers run its jobs."""
    return carrier_of(queue_name, settings.carriers)


def overdue_jobs(store: Store, carrier: CarrierSettings) -> Iterator[tuple[int, str, str, float]]:
    """The jobs whose outcome the carrier should have sent long ago: id, task, holder and seconds, the longest first.

    After `wait` seconds a job comes back unless a worker has it, and each of `DELIVERIES` workers may take as long as
    the time limit of the job.
    """
    parameters = {"seconds": carrier.wait, "carrier_id": carrier_id(carrier.name)}
    for job_id, task, holder, age, timeout in store.rows(sql.HELD_FOR_LONG, parameters):
        if age > carrier.wait + DELIVERIES * time_limit(task, timeout):
            yield job_id, task, holder, age
