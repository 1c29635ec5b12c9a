"""How many jobs a relay may claim: the carrier holds a window of the queues, and PostgreSQL the rest.

A relay does not see at once what the others do. So it counts the rows of all relays again every second, and until the
next count it takes its share of the room that it has found: one part for each relay that is alive.

Invariant: relays that count at the same time fill the window, and no more. If one has not used its share before others
count again, that share is above the window, and so is one job of each relay where the room cannot be divided.
"""

import time
from collections.abc import Sequence

from ..runtime.service import Service
from ..store import Store
from ..values.records import ClaimedJob
from . import sql
from .carried_jobs import CarriedJobs

BATCH = 500
"""Jobs in one claim, and in one message to the carrier's connection."""

MOST_UNCONFIRMED = 2 * BATCH
"""Jobs of one relay that the carrier has not confirmed yet: so many may run twice if the relay dies."""

MOST_UNCONFIRMED_SIZE = 16_000_000
"""Characters of the arguments of those jobs, unless a single claim has more: their messages are in memory."""

COUNT_INTERVAL = 1.0
FULL_INTERVAL = 0.1
"""Seconds between two counts; while the window is full, the second. Another relay may have settled jobs."""

COUNT_SHARE = 10
"""A count may take one part in so many of the time: of 100,000 rows, it takes long."""

FIRST_SHARE = 8
"""Until its second count a relay takes at most an eighth of the window: relays that start together do not see each
other yet."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds without a claim after the carrier has refused jobs, doubled up to the second each time."""


class Window(Service):
    """As a service it counts the jobs that the carrier holds by their rows. Used by the control loop's thread."""

    name = "carried_count"
    due_at = 0.0

    def __init__(self, store: Store, jobs: CarriedJobs, *, size: int, worker_timeout: float) -> None:
        """`store` is that of the relay. `worker_timeout`: the seconds after which a relay counts as dead."""
        self._store = store
        self.jobs = jobs
        self._values = {**store.carrier, "worker_timeout": worker_timeout}
        self._size = size
        self._most = 0  # jobs of this relay and of the carrier, until the next count
        self.is_counted = self.is_full = False
        self._paused_until = 0.0
        self._refusals = 0  # in a row
        self.jobs_refused = 0
        """How many jobs the carrier has not taken."""
        self._size_of_job = 1  # characters of its arguments, in the mean of the last claim
        self._clock = 0.0  # the database's time minus this process's monotonic time
        self.is_blocked = False
        """Whether the carrier takes no jobs for now."""

    def room(self, coming: int, now: float) -> int:
        if not self.is_counted or self.is_blocked or now < self._paused_until:
            return 0
        free = self._most - self.jobs.count - coming
        unconfirmed = MOST_UNCONFIRMED - len(self.jobs.unconfirmed) - coming
        size = MOST_UNCONFIRMED_SIZE - self.jobs.unconfirmed_size
        by_size = -(-size // self._size_of_job) - coming  # at least one, unless the size is reached
        return max(0, min(free, unconfirmed, by_size, BATCH))

    def run(self, now: float) -> None:
        started = time.monotonic()
        ((self.jobs.with_carrier, with_relays, relays),) = self._store.rows(sql.CARRIED_COUNT, self._values)
        room = self._size - self.jobs.with_carrier - with_relays
        share = -(-room // max(relays, 1))
        if not self.is_counted:
            share = min(share, max(self._size // FIRST_SHARE, 1))
        self._most = self.jobs.count + share
        self.is_counted, self.is_full = True, room <= 0
        ended = time.monotonic()
        self.due_at = ended + max(FULL_INTERVAL if self.is_full else COUNT_INTERVAL, COUNT_SHARE * (ended - started))

    def pause(self, refused: int) -> float:
        """Claim nothing for a while: the carrier has refused `refused` jobs. Returns for how many seconds."""
        self.jobs_refused += refused
        self._refusals += 1
        seconds: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._refusals - 1, 10))
        self._paused_until = time.monotonic() + seconds
        return seconds

    def go_on(self) -> None:
        self._refusals = 0

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note the size of these jobs, and how the database's clock and this process's monotonic one differ."""
        self._size_of_job = max(sum([len(job.args) + len(job.kwargs) for job in jobs]) // len(jobs), 1)
        job = jobs[-1]
        if job.claimed_at is not None:
            self._clock = job.locked_at - job.claimed_at

    def claimed_at(self, job: ClaimedJob) -> float | None:
        """When a job was claimed, in this process's monotonic time; `None`: this process cannot say."""
        return job.locked_at - self._clock if self._clock else None
