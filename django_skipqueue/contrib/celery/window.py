"""The jobs that a relay is responsible for, and the window: the maximum number of jobs that a carrier may have.

Each job of the relay is in exactly one collection: in the result of the last exchange, in `unconfirmed`, `confirmed`,
`to_release` or `to_recover`, or among the jobs that were not sent. The relay acknowledges a delivery only after the
database has stored its content.

Jobs that exceed the window stay in PostgreSQL. A relay does not immediately see what other
relays do. So every second it counts the jobs of all relays, and until the next count it uses its share of the free
room, which is divided by the number of live relays.

Relays that count at the same time fill the window exactly. The window may be exceeded by the share of a relay that has
not used it before others count again, and by one job per relay if the room cannot be divided evenly.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...queue.store import Store
from ...values.records import Attempt, ClaimedJob, LeaseRef
from ...worker.loop import Service
from .carrier import ReturnedJob, Taken

MOST_REMEMBERED = 10_000
"""How many settled outcomes a relay remembers, because the carrier may deliver them again."""

AttemptOfReturned = Callable[[ReturnedJob], Attempt | None]
"""Makes the attempt of a job that came back without an outcome; `None` if there is nothing to settle."""


@dataclass
class CarriedJobs:
    """The jobs of a relay, by what has happened to them. Only the control loop's thread uses it."""

    unconfirmed: dict[LeaseRef, int] = field(default_factory=dict)
    """Published jobs that the carrier has not confirmed, each with the size of its arguments in characters."""
    unconfirmed_size: int = 0
    """The total size of the arguments of these jobs in characters."""
    confirmed: list[LeaseRef] = field(default_factory=list)
    """Jobs that the carrier has confirmed, but whose rows do not name the carrier yet."""
    to_release: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Jobs to release, each with the deliveries to acknowledge afterwards."""
    to_recover: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Returned jobs whose Celery workers died, with their deliveries. If a job had begun, this costs an attempt."""
    begun: dict[LeaseRef, list[int]] = field(default_factory=dict)
    """Jobs that begin again after a process that had them died, with the deliveries that say so."""
    with_carrier: int = 0
    """The number of rows that name the carrier, as far as this relay knows."""
    _not_sent: set[LeaseRef] = field(default_factory=set)  # jobs that were too large and have not been settled yet
    _deliveries: dict[LeaseRef, list[int]] = field(default_factory=dict)  # the deliveries of unsettled outcomes
    _settled: set[LeaseRef] = field(default_factory=set)  # settled after the connection broke, so they may come again

    @property
    def count(self) -> int:
        return self.with_carrier + len(self.unconfirmed) + len(self.confirmed)

    @property
    def held_ids(self) -> list[int]:
        """The ids of all jobs for which this relay is responsible."""
        collections = (
            self.unconfirmed,
            self.confirmed,
            self.to_release,
            self.to_recover,
            self._deliveries,
            self._not_sent,
        )
        return list({job_id for refs in collections for job_id, _lease in refs})

    def published(self, jobs: Iterable[ClaimedJob]) -> None:
        sizes = {job.ref: len(job.args) + len(job.kwargs) for job in jobs}
        self.unconfirmed.update(sizes)
        self.unconfirmed_size += sum(sizes.values())

    def _was_unconfirmed(self, ref: LeaseRef) -> bool:
        """Remove a job from the unconfirmed jobs. Return whether it was among them."""
        size = self.unconfirmed.pop(ref, None)
        self.unconfirmed_size -= size or 0
        return size is not None

    def not_sent(self, refs: Iterable[LeaseRef]) -> None:
        """Record that these jobs are not sent to the carrier, because the relay settles them as failed."""
        self._not_sent.update(filter(self._was_unconfirmed, refs))

    def take(self, taken: Taken, make_attempt: AttemptOfReturned) -> tuple[list[Attempt], list[int]]:
        """Record what the carrier has sent. Return the attempts to settle, and deliveries to acknowledge immediately.

        If a job's outcome arrives twice, the relay settles the first, and then acknowledges both deliveries. If a job
        comes back twice, it also acknowledges both deliveries.
        """
        self.confirmed += filter(self._was_unconfirmed, taken.confirmed)
        self.release(filter(self._was_unconfirmed, taken.refused))
        attempts: list[Attempt] = []
        to_acknowledge: list[int] = []
        for delivery, attempt in taken.outcomes:
            self._take_outcome(delivery, attempt, attempts, to_acknowledge)
        for delivery, ref in taken.begun:
            self.begun.setdefault(ref, []).append(delivery)
        for returned in taken.jobs:
            if returned.ref is None:
                to_acknowledge.append(returned.delivery)
            elif failed_attempt := make_attempt(returned):
                self._take_outcome(returned.delivery, failed_attempt, attempts, to_acknowledge)
            else:
                collection = self.to_recover if returned.reason == "delivery_limit" else self.to_release
                collection.setdefault(returned.ref, []).append(returned.delivery)
        return attempts, to_acknowledge

    def release(self, refs: Iterable[LeaseRef]) -> None:
        """Plan to release these jobs, because the carrier does not have them."""
        for ref in refs:
            self.to_release.setdefault(ref, [])

    def _take_outcome(
        self, delivery: int, attempt: Attempt, attempts: list[Attempt], to_acknowledge: list[int]
    ) -> None:
        ref = attempt.job.ref
        if ref in self._settled:
            self._settled.remove(ref)
            to_acknowledge.append(delivery)
        elif ref in self._deliveries:
            self._deliveries[ref].append(delivery)
        else:
            self._deliveries[ref] = [delivery]
            attempts.append(attempt)
            if self.to_release.get(ref) == []:
                del self.to_release[ref]  # the carrier had the job after all

    def handed_over(self, refs: Iterable[LeaseRef], count: int) -> None:
        """Record that `count` of these jobs now name the carrier. The outcomes of the rest have already arrived."""
        handed_over_refs = set(refs)
        self.confirmed = [ref for ref in self.confirmed if ref not in handed_over_refs]
        self.with_carrier += count

    def settled(self, attempts: Iterable[Attempt]) -> list[int]:
        """Record that these outcomes are settled, or have lost their leases. Return the deliveries to acknowledge."""
        acknowledged: list[int] = []
        for attempt in attempts:
            if attempt.job.ref in self._not_sent:
                self._not_sent.remove(attempt.job.ref)
                continue
            deliveries = self._deliveries.pop(attempt.job.ref)
            acknowledged += deliveries
            if not deliveries:  # the connection broke meanwhile, so the outcome will be delivered again
                self._settled.add(attempt.job.ref)
            self.with_carrier = max(self.with_carrier - 1, 0)
        return acknowledged

    def came_back(self, ref: LeaseRef) -> bool:
        """Return whether the carrier has given back this job, and the relay must still release or recover it."""
        return bool(self.to_recover.get(ref) or self.to_release.get(ref))

    def taken_back(self, refs: Iterable[LeaseRef]) -> list[int]:
        """Record that these jobs are released or recovered. Return the deliveries to acknowledge."""
        collections = self.to_recover, self.to_release
        return [delivery for ref in refs for collection in collections for delivery in collection.pop(ref, [])]

    def connection_lost(self) -> None:
        """Record that the connection to the carrier broke. Its deliveries will come again, to this or another relay.

        The relay releases the unconfirmed jobs. If the carrier has such a job after all, the job runs twice, but only
        one outcome is stored.
        """
        self._deliveries = {ref: [] for ref in self._deliveries}  # the old deliveries can no longer be acknowledged
        self.to_recover.clear()
        self.begun.clear()
        if len(self._settled) > MOST_REMEMBERED:
            self._settled.clear()
        self.to_release = {ref: [] for ref, deliveries in self.to_release.items() if not deliveries}
        self.release_unconfirmed()

    def release_unconfirmed(self) -> None:
        """Plan to release the unconfirmed jobs, except jobs whose outcome has arrived."""
        self.release(ref for ref in self.unconfirmed if ref not in self._deliveries)
        self.unconfirmed.clear()
        self.unconfirmed_size = 0


CARRIER_BATCH = 500
"""The maximum number of jobs in one claim."""

MOST_UNCONFIRMED = 2 * CARRIER_BATCH
"""The maximum number of a relay's unconfirmed jobs, which may run twice if the relay dies."""

MOST_UNCONFIRMED_SIZE = 16_000_000
"""The maximum size of the unconfirmed jobs' arguments in characters. A single claim may exceed it."""

WINDOW_COUNT_INTERVAL = 1.0
FULL_WINDOW_INTERVAL = 0.1
"""Seconds between two counts of the jobs. The second applies while the window is full, to notice room soon."""

COUNT_SHARE = 10
"""The counts take at most a tenth of the time, because counting 100,000 rows takes long."""

FIRST_SHARE = 8
"""Until its second count, a relay uses at most an eighth of the window, because relays that start together do not see
each other yet."""

FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE = 1.0, 30.0
"""Seconds without a claim after the carrier has refused jobs. The first pause doubles each time, up to the longest."""


# Sent by the relay. Returns how many jobs the carrier has, how many jobs its relays have, and how many of these relays
# are alive. Index: recover, which has one entry per running job.
CARRIED_COUNT = """
WITH relay AS MATERIALIZED (
    SELECT
        worker.id,
        worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s) AS is_alive
    FROM skipqueue_celery_worker AS celery_row JOIN skipqueue_worker AS worker ON worker.id = celery_row.worker_id
    WHERE celery_row.relay_of = %(carrier)s
)
SELECT
    count(*) FILTER (WHERE locked_by = %(carrier_id)s),
    count(*) FILTER (WHERE locked_by <> %(carrier_id)s),
    (SELECT count(*) FROM relay WHERE is_alive)
FROM skipqueue_job
WHERE status = 'running' AND (locked_by = %(carrier_id)s OR locked_by IN (SELECT id FROM relay))
"""


class CarrierWindow(Service):
    """Counts the jobs of the carrier and its relays, and says how many more jobs this relay may claim."""

    name = "carried_count"
    due_at = 0.0

    def __init__(self, store: Store, jobs: CarriedJobs, *, size: int, worker_timeout: float) -> None:
        """worker_timeout: a relay without a heartbeat for this many seconds counts as dead."""
        self._store = store
        self.jobs = jobs
        self._values = {**store.holder, "worker_timeout": worker_timeout}
        self._size = size
        self._most_until_next_count = 0  # the maximum number of jobs of this relay and the carrier until the next count
        self.is_counted = self.is_full = False
        self._paused_until = 0.0
        self._refusals = 0  # the number of refusals in a row
        self.jobs_refused = 0
        """The number of jobs that the carrier has refused."""
        self._size_of_job = 1  # the mean size of a job's arguments in the last claim, in characters
        self._clock_offset = 0.0  # the database's time minus this process's monotonic time
        self.is_blocked = False
        """Whether the carrier accepts no jobs at the moment."""

    def room(self, coming: int, now: float) -> int:
        """Return how many jobs the relay may claim now. `coming`: the number of claimed jobs not yet published."""
        if not self.is_counted or self.is_blocked or now < self._paused_until:
            return 0
        room_in_window = self._most_until_next_count - self.jobs.count - coming
        room_for_unconfirmed = MOST_UNCONFIRMED - len(self.jobs.unconfirmed) - coming
        free_characters = MOST_UNCONFIRMED_SIZE - self.jobs.unconfirmed_size
        room_by_size = -(-free_characters // self._size_of_job) - coming  # rounded up: at least one job
        return max(0, min(room_in_window, room_for_unconfirmed, room_by_size, CARRIER_BATCH))

    def run(self, now: float) -> None:
        started = time.monotonic()
        ((self.jobs.with_carrier, jobs_with_relays, live_relays),) = self._store.rows(CARRIED_COUNT, self._values)
        room = self._size - self.jobs.with_carrier - jobs_with_relays
        share = -(-room // max(live_relays, 1))  # rounded up
        if not self.is_counted:
            share = min(share, max(self._size // FIRST_SHARE, 1))
        self._most_until_next_count = self.jobs.count + share
        self.is_counted, self.is_full = True, room <= 0
        ended = time.monotonic()
        self.due_at = ended + max(
            FULL_WINDOW_INTERVAL if self.is_full else WINDOW_COUNT_INTERVAL, COUNT_SHARE * (ended - started)
        )

    def pause(self, refused: int) -> float:
        """Claim nothing for a while, because the carrier has refused jobs. Return the length of the pause."""
        self.jobs_refused += refused
        self._refusals += 1
        seconds: float = min(LONGEST_REFUSAL_PAUSE, FIRST_REFUSAL_PAUSE * 2 ** min(self._refusals - 1, 10))
        self._paused_until = time.monotonic() + seconds
        return seconds

    def end_refusals(self) -> None:
        self._refusals = 0

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Record the size of these jobs, and the difference between the database's clock and the monotonic clock."""
        self._size_of_job = max(sum([len(job.args) + len(job.kwargs) for job in jobs]) // len(jobs), 1)
        job = jobs[-1]
        if job.claimed_at is not None:
            self._clock_offset = job.locked_at - job.claimed_at

    def claimed_at(self, job: ClaimedJob) -> float | None:
        """Return when a job was claimed, in this process's monotonic time; `None` if unknown."""
        return job.locked_at - self._clock_offset if self._clock_offset else None
