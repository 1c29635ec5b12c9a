"""The seam between a relay and a carrier, which is an engine outside of PostgreSQL that runs jobs.

Invariant: nobody acknowledges a message before the content of the message is safe elsewhere. The relay hands a job over
after the carrier has confirmed it, and acknowledges an outcome after its settle is committed.

When the connection to the carrier breaks, the relay opens it again with a back-off. Invariant: an error of the carrier
ends no process, and delays only what needs the carrier.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef, worker_name
from ...worker.loop import Service
from . import logs as relay_logs


class CarrierUnreachable(Exception):
    """The carrier cannot be reached, or its connection broke. The relay connects again after a delay."""


class CarrierMisconfigured(Exception):
    """The carrier can be reached, but not used. The message says what to change."""


def carrier_id(name: str) -> str:
    """Return the id of a carrier's row among the workers. It depends only on the name, in the form of a worker's id."""
    return f"{name}:{blake2b(name.encode(), digest_size=6, person=b'carrier').hexdigest()}"


def carrier_of(locked_by: str) -> str:
    """Return the name of the carrier that holds a job, by the `locked_by` of its row; empty: no carrier holds it."""
    name = worker_name(locked_by)
    return name if name != locked_by and carrier_id(name) == locked_by else ""


def home_of(alias: str, since: datetime) -> str:
    """Return the address for the outcomes of a carrier's jobs: the alias and a mark of their database.

    Two projects that share a broker may both have the alias. since: when a relay wrote the carrier's row first.
    """
    return f"{alias}@{int(since.timestamp() * 1_000_000):x}"


def alias_of(home: str) -> str:
    return home.rpartition("@")[0] or home


class ReturnedOutcome(NamedTuple):
    delivery: int
    """The number that `acknowledge` takes."""
    attempt: Attempt


class ReturnedJob(NamedTuple):
    delivery: int
    ref: LeaseRef | None
    """`None`: the message is about no job."""
    reason: str
    """`expired`: the job has waited too long. `delivery_limit`: each worker that got the job is gone. `maxlen`: the
    queue is longer than a policy of the broker allows. `rejected`: the worker cannot read the job, or refuses it.
    `unreadable`: the job has run, but the relay cannot read its outcome."""
    job: ClaimedJob | None
    """The job, without large arguments; `None` if the relay cannot read the message."""
    problem: str = ""
    """Which message the relay cannot read, and why."""


class BegunJob(NamedTuple):
    """A process of the carrier begins a job, after another process that had the job is gone."""

    delivery: int
    ref: LeaseRef


class TooLarge(NamedTuple):
    job: ClaimedJob
    size: int
    """Bytes of the message."""
    most: int
    """Bytes that it may have."""


@dataclass
class Taken:
    """What the carrier has sent since the last call of `take`."""

    confirmed: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier holds from now on."""
    refused: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier has refused: its queue is full, or gone."""
    outcomes: list[ReturnedOutcome] = field(default_factory=list)
    jobs: list[ReturnedJob] = field(default_factory=list)
    begun: list[BegunJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.refused or self.outcomes or self.jobs or self.begun)


class Carrier(Protocol):
    """Used by the thread of the relay's control loop. Every method may raise `CarrierUnreachable`.

    After that, the relay calls `close` and then `connect`. The new connection delivers again what the old connection
    delivered. Nobody knows whether the carrier has the unconfirmed jobs: the relay releases them.
    """

    name: str
    home: str
    """The address for outcomes, made by `home_of`. The relay sets it before it connects."""

    def connect(self) -> None:
        """Open the connection, and declare missing queues. Raises `CarrierMisconfigured` too."""

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        """Send the jobs, but return the jobs that are too large.

        Each job that was sent is in `confirmed` or `refused` of a later `take`.
        """

    def take(self) -> Taken:
        """Return what has come since the last call. Does not wait."""

    def acknowledge(self, deliveries: Collection[int]) -> None:
        """Let the carrier forget these outcomes and jobs: the database has their content."""

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        """Ask the carrier not to begin these jobs, if it can."""

    @property
    def is_blocked(self) -> bool:
        """Whether the carrier takes no jobs for now: it lacks memory or space on its disk."""

    def fileno(self) -> int:
        """Return the file that can be read when there is something to take."""

    def close(self) -> None:
        """Close the connection, if it is open. Raises nothing."""


FIRST_CONNECT_DELAY, LONGEST_CONNECT_DELAY = 0.25, 10.0
"""Seconds until the next try after a failure, doubled up to the second each time."""

CONNECT_TIME = 120.0
"""Seconds that opening the connection may take: each of its steps up to 10, and there is one for each queue."""


class CarrierConnection(Service):
    """Used by the control loop's thread. As a service it opens the connection."""

    name = "carrier_connection"
    loop_handles_errors = False

    def __init__(
        self,
        carrier: Carrier,
        *,
        who: str,
        home: Callable[[], str],
        lost: Callable[[], object],
        stamp: Callable[[float], object],
    ) -> None:
        """home: returns the address for outcomes, made by `home_of`. While it is empty, the relay opens no connection.

        lost: called after the connection broke. stamp: called with the seconds that opening the connection may take.
        """
        self.carrier = carrier
        self.is_open = False
        self._who, self._home, self._lost, self._stamp = who, home, lost, stamp
        self._failures, self._retry_at = 0, 0.0

    @property
    def due_at(self) -> float:
        return NEVER if self.is_open or not self._home() else self._retry_at

    def run(self, now: float) -> None:
        self._stamp(CONNECT_TIME)
        with self.handling_errors():
            self.carrier.home = self._home()
            self.carrier.connect()
            self.is_open = True
            log = relay_logs.carrier_back if self._failures else relay_logs.carrier_reached
            log(self._who, self.carrier.name)
            self._failures = 0

    @property
    def files(self) -> list[int]:
        """The file that can be read when the carrier has sent something; empty while the connection is closed."""
        return [self.carrier.fileno()] if self.is_open else []

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        """Run a block that uses the carrier. An error of the carrier closes the connection, and is not raised."""
        try:
            yield
        except (CarrierUnreachable, CarrierMisconfigured) as error:
            was_open, self.is_open = self.is_open, False
            self.carrier.close()
            self._failures += 1
            longest = min(LONGEST_CONNECT_DELAY, FIRST_CONNECT_DELAY * 2 ** min(self._failures, 10))
            delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
            self._retry_at = time.monotonic() + delay
            relay_logs.carrier_lost(self._who, self.carrier.name, error, delay)
            if was_open:
                self._lost()

    def acknowledge(self, deliveries: Collection[int]) -> None:
        """Acknowledge these deliveries, if the connection is open. A new connection delivers them again."""
        if deliveries and self.is_open:
            with self.handling_errors():
                self.carrier.acknowledge(deliveries)

    def close(self) -> None:
        self.is_open, self._retry_at = False, NEVER
        self.carrier.close()
