"""The jobs that a relay holds, the outcomes that it has to settle, and how many more jobs it may claim.

Invariant: each job that the relay holds is in one place: in the result of the last exchange, or in `unconfirmed`,
`confirmed`, `to_release` or `to_recover`, or among the jobs not sent. The relay acknowledges a delivery after the
database has its content.

The carrier holds a window of jobs, and PostgreSQL the rest. A relay does not see at once what other relays do. So every
second it counts the rows of all relays, and until the next count it takes its share of the free room: one part for each
relay that is alive.

Invariant: relays that count at the same time fill the window, and no more. The window may be exceeded by the share of a
relay that has not used it before others count again, and by one job for each relay if the room cannot be divided.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...queue.store import Store
from ...values.records import Attempt, ClaimedJob, LeaseRef
from ...worker.loop import Service
from .carrier import ReturnedJob, Taken

MOST_REMEMBERED = 10_000
"""Settled outcomes that a relay remembers until the carrier delivers them again. Another relay may get them instead."""

AttemptOfReturned = Callable[[ReturnedJob], Attempt | None]
"""Makes the attempt of a job that came back without an outcome; `None`: there is nothing to settle."""


@dataclass
class CarriedJobs:
    """Used by the control loop's thread."""

    unconfirmed: dict[LeaseRef, int] = field(default_factory=dict)
    """Jobs that the carrier may have or not. The value is the size of the job's arguments, in characters."""
    unconfirmed_size: int = 0
    """The characters of the arguments of all unconfirmed jobs."""
    confirmed: list[LeaseRef] = field(default_factory=list)
    """Jobs that the carrier has, although their rows do not name it yet."""
    to_release: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Jobs to release, each with the deliveries to acknowledge after that."""
    to_recover: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Returned jobs whose Celery workers are gone, with their deliveries. A job that had begun costs an attempt."""
    begun: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Jobs that begin again, after a process that had them is gone, with the deliveries that say so."""
    with_carrier: int = 0
    """How many rows name the carrier, as far as this relay knows."""
    _not_sent: set[LeaseRef] = field(default_factory=set)  # their failed attempts are not settled yet
    _deliveries: dict[LeaseRef, list[int]] = field(default_factory=dict)  # the deliveries of unsettled outcomes
    _settled: set[LeaseRef] = field(default_factory=set)  # settled after the connection broke: they may come again

    @property
    def count(self) -> int:
        return self.with_carrier + len(self.unconfirmed) + len(self.confirmed)

    @property
    def held_ids(self) -> list[int]:
        places = (self.unconfirmed, self.confirmed, self.to_release, self.to_recover, self._deliveries, self._not_sent)
        return list({id for refs in places for id, _ in refs})

    def published(self, jobs: Iterable[ClaimedJob]) -> None:
        sizes = {job.ref: len(job.args) + len(job.kwargs) for job in jobs}
        self.unconfirmed.update(sizes)
        self.unconfirmed_size += sum(sizes.values())

    def _was_unconfirmed(self, ref: LeaseRef) -> bool:
        size = self.unconfirmed.pop(ref, None)
        self.unconfirmed_size -= size or 0
        return size is not None

    def not_sent(self, refs: Iterable[LeaseRef]) -> None:
        """Note that the carrier does not get these published jobs: the relay settles failed attempts of them."""
        self._not_sent.update(filter(self._was_unconfirmed, refs))

    def take(self, taken: Taken, ended: AttemptOfReturned) -> tuple[list[Attempt], list[int]]:
        """Note what came from the carrier. Return the attempts to settle, and the deliveries to acknowledge at once.

        If two outcomes of a job come, the relay settles the first one, and then acknowledges both deliveries. It also
        acknowledges both deliveries of a job that comes back twice.
        """
        self.confirmed += filter(self._was_unconfirmed, taken.confirmed)
        self.release(filter(self._was_unconfirmed, taken.refused))
        attempts: list[Attempt] = []
        known: list[int] = []
        for delivery, attempt in taken.outcomes:
            self._take(delivery, attempt, attempts, known)
        for delivery, ref in taken.begun:
            self.begun.setdefault(ref, []).append(delivery)
        for returned in taken.jobs:
            if returned.ref is None:
                known.append(returned.delivery)
            elif failed := ended(returned):
                self._take(returned.delivery, failed, attempts, known)
            else:
                place = self.to_recover if returned.reason == "delivery_limit" else self.to_release
                place.setdefault(returned.ref, []).append(returned.delivery)
        return attempts, known

    def release(self, refs: Iterable[LeaseRef]) -> None:
        """Have the relay release these jobs: the carrier does not have them."""
        for ref in refs:
            self.to_release.setdefault(ref, [])

    def _take(self, delivery: int, attempt: Attempt, attempts: list[Attempt], known: list[int]) -> None:
        ref = attempt.job.ref
        if ref in self._settled:
            self._settled.remove(ref)
            known.append(delivery)
        elif ref in self._deliveries:
            self._deliveries[ref].append(delivery)
        else:
            self._deliveries[ref] = [delivery]
            attempts.append(attempt)
            if self.to_release.get(ref) == []:
                del self.to_release[ref]  # the carrier had it after all

    def handed_over(self, refs: Iterable[LeaseRef], count: int) -> None:
        """Note that `count` rows of these jobs name the carrier. The other jobs had an outcome before."""
        done = set(refs)
        self.confirmed = [ref for ref in self.confirmed if ref not in done]
        self.with_carrier += count

    def settled(self, attempts: Iterable[Attempt]) -> list[int]:
        """Note that these outcomes are written, or have lost their leases. Return the deliveries to acknowledge."""
        acknowledged: list[int] = []
        for attempt in attempts:
            if attempt.job.ref in self._not_sent:
                self._not_sent.remove(attempt.job.ref)
                continue
            deliveries = self._deliveries.pop(attempt.job.ref)
            acknowledged += deliveries
            if not deliveries:
                self._settled.add(attempt.job.ref)
            self.with_carrier = max(self.with_carrier - 1, 0)
        return acknowledged

    def came_back(self, ref: LeaseRef) -> bool:
        """Return whether the carrier has delivered this job, which the relay has to release or recover."""
        return bool(self.to_recover.get(ref) or self.to_release.get(ref))

    def taken_back(self, refs: Iterable[LeaseRef]) -> list[int]:
        """Note that these jobs are released or recovered. Return the deliveries to acknowledge."""
        places = self.to_recover, self.to_release
        return [delivery for ref in refs for place in places for delivery in place.pop(ref, [])]

    def connection_lost(self) -> None:
        """Note that the connection to the carrier is gone. Its deliveries come again, to this relay or another relay.

        The relay releases the unconfirmed jobs. If the carrier has such a job, the job runs twice, and a relay writes
        one outcome.
        """
        self._deliveries = {ref: [] for ref in self._deliveries}
        self.to_recover.clear()
        self.begun.clear()
        if len(self._settled) > MOST_REMEMBERED:
            self._settled.clear()
        self.to_release = {ref: [] for ref, deliveries in self.to_release.items() if not deliveries}
        self.release_unconfirmed()

    def release_unconfirmed(self) -> None:
        """Have the relay release the unconfirmed jobs, except for jobs whose outcomes wait."""
        self.release(ref for ref in self.unconfirmed if ref not in self._deliveries)
        self.unconfirmed.clear()
        self.unconfirmed_size = 0


CARRIER_BATCH = 500
"""The maximum of jobs in one claim."""

MOST_UNCONFIRMED = 2 * CARRIER_BATCH
"""The maximum of unconfirmed jobs of one relay. They may run twice if the relay dies."""

MOST_UNCONFIRMED_SIZE = 16_000_000
"""Characters of the arguments of the unconfirmed jobs, which are in memory. A single claim may have more."""

WINDOW_COUNT_INTERVAL = 1.0
FULL_WINDOW_INTERVAL = 0.1
"""Seconds between two counts: usually, and while the window is full, since another relay may settle jobs."""

COUNT_SHARE = 10
"""The counts take a tenth of the time at most: a count takes long with 100,000 rows."""

FIRST_SHARE = 8
"""Until its second count a relay takes at most an eighth of the window: relays that start together do not see each
other yet."""

FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE = 1.0, 30.0
"""Seconds without a claim after the carrier has refused jobs. Each refusal doubles them, up to the second number."""


# relay → how many jobs the carrier holds, how many jobs its relays hold for it, and how many relays are alive. Index:
# recover, which has an entry for each running job.
CARRIED_COUNT = """
WITH relay AS MATERIALIZED (
    SELECT
        worker.id,
        worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s) AS is_alive
    FROM skipqueue_celery_worker AS of_celery JOIN skipqueue_worker AS worker ON worker.id = of_celery.worker_id
    WHERE of_celery.relay_of = %(carrier)s
)
SELECT
    count(*) FILTER (WHERE locked_by = %(carrier_id)s),
    count(*) FILTER (WHERE locked_by <> %(carrier_id)s),
    (SELECT count(*) FROM relay WHERE is_alive)
FROM skipqueue_job
WHERE status = 'running' AND (locked_by = %(carrier_id)s OR locked_by IN (SELECT id FROM relay))
"""


class CarrierWindow(Service):
    """How many jobs a relay may claim. As a service, it counts the rows that name the carrier or its relays."""

    name = "carried_count"
    due_at = 0.0

    def __init__(self, store: Store, jobs: CarriedJobs, *, size: int, worker_timeout: float) -> None:
        """worker_timeout: the seconds after which a relay counts as dead."""
        self._store = store
        self.jobs = jobs
        self._values = {**store.holder, "worker_timeout": worker_timeout}
        self._size = size
        self._most = 0  # jobs of this relay and of the carrier, until the next count
        self.is_counted = self.is_full = False
        self._paused_until = 0.0
        self._refusals = 0  # in a row
        self.jobs_refused = 0
        """How many jobs the carrier has refused."""
        self._size_of_job = 1  # the mean characters of the arguments of a job, in the last claim
        self._clock = 0.0  # the database's time minus this process's monotonic time
        self.is_blocked = False
        """Whether the carrier takes no jobs for now."""

    def room(self, coming: int, now: float) -> int:
        if not self.is_counted or self.is_blocked or now < self._paused_until:
            return 0
        free = self._most - self.jobs.count - coming
        unconfirmed = MOST_UNCONFIRMED - len(self.jobs.unconfirmed) - coming
        size = MOST_UNCONFIRMED_SIZE - self.jobs.unconfirmed_size
        by_size = -(-size // self._size_of_job) - coming  # at least one, while there is room for a character
        return max(0, min(free, unconfirmed, by_size, CARRIER_BATCH))

    def run(self, now: float) -> None:
        started = time.monotonic()
        ((self.jobs.with_carrier, with_relays, relays),) = self._store.rows(CARRIED_COUNT, self._values)
        room = self._size - self.jobs.with_carrier - with_relays
        share = -(-room // max(relays, 1))
        if not self.is_counted:
            share = min(share, max(self._size // FIRST_SHARE, 1))
        self._most = self.jobs.count + share
        self.is_counted, self.is_full = True, room <= 0
        ended = time.monotonic()
        self.due_at = ended + max(
            FULL_WINDOW_INTERVAL if self.is_full else WINDOW_COUNT_INTERVAL, COUNT_SHARE * (ended - started)
        )

    def pause(self, refused: int) -> float:
        """Claim nothing for a while: the carrier has refused `refused` jobs. Return the seconds of the pause."""
        self.jobs_refused += refused
        self._refusals += 1
        seconds: float = min(LONGEST_REFUSAL_PAUSE, FIRST_REFUSAL_PAUSE * 2 ** min(self._refusals - 1, 10))
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
        """Return when a job was claimed, in this process's monotonic time; `None`: this process cannot say."""
        return job.locked_at - self._clock if self._clock else None
