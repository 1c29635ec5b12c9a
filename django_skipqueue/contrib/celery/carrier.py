"""The interface between a relay and a carrier: a system outside of PostgreSQL that runs jobs, such as Celery.

A message is acknowledged only after its content is safe elsewhere. A job counts as handed over once the carrier has
confirmed it. The relay acknowledges an outcome only after its settle is committed.

When the connection to the carrier breaks, the relay opens it again with a back-off. An error of the carrier never ends
a process, and only delays the work that needs the carrier.
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
    """The carrier cannot be reached, or the connection broke. The relay connects again after a delay."""


class CarrierMisconfigured(Exception):
    """The carrier can be reached but not used. The error message says what to change."""


def carrier_id(name: str) -> str:
    """Return the id of a carrier's row in the table of workers. It depends only on the carrier's name."""
    return f"{name}:{blake2b(name.encode(), digest_size=6, person=b'carrier').hexdigest()}"


def carrier_of(locked_by: str) -> str:
    """Return the name of the carrier that has a job, from the job's `locked_by`; empty if a worker has it."""
    name = worker_name(locked_by)
    return name if name != locked_by and carrier_id(name) == locked_by else ""


def home_of(alias: str, since: datetime) -> str:
    """Return the name of the place to which a carrier sends outcomes: the database's alias and a unique mark.

    The mark is needed because two projects that share a broker may use the same alias. `since`: when a relay first
    wrote the carrier's row.
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
    """`None` if the message is not about a job."""
    reason: str
    """`expired`: the job waited too long. `delivery_limit`: every worker that got the job died. `maxlen`: the queue is
    longer than a policy of the broker allows. `rejected`: the worker could not read the job, or refused it.
    `unreadable`: the job has run, but the relay cannot read its outcome."""
    job: ClaimedJob | None
    """The job, without large arguments; `None` if the relay cannot read the message."""
    problem: str = ""
    """If the relay cannot read the message: which message, and why."""


class BegunJob(NamedTuple):
    """A process of the carrier has begun a job that another process had when it died."""

    delivery: int
    ref: LeaseRef


class TooLarge(NamedTuple):
    job: ClaimedJob
    size: int
    """The size of the message in bytes."""
    most: int
    """The largest allowed size in bytes."""


@dataclass
class Taken:
    """Everything that the carrier has sent since the last call of `take`."""

    confirmed: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier has accepted."""
    refused: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier has refused, because its queue is full or no longer exists."""
    outcomes: list[ReturnedOutcome] = field(default_factory=list)
    jobs: list[ReturnedJob] = field(default_factory=list)
    """The jobs that came back without an outcome."""
    begun: list[BegunJob] = field(default_factory=list)
    """Jobs that begin again after the process that had them died."""

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.refused or self.outcomes or self.jobs or self.begun)


class Carrier(Protocol):
    """The interface of a carrier. Only the relay's control loop uses it. Every method may raise `CarrierUnreachable`.

    After this error, the relay calls `close` and then `connect`. The new connection delivers again what the old one had
    delivered. Nobody knows whether the carrier has the unconfirmed jobs, so the relay releases them.
    """

    name: str
    home: str
    """The place for outcomes, made by `home_of`. The relay sets it before it connects."""

    def connect(self) -> None:
        """Open the connection, and declare missing queues. May also raise `CarrierMisconfigured`."""

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        """Send the jobs, except jobs that are too large, which are returned.

        A later `take` lists each job that was sent in `confirmed` or `refused`.
        """

    def take(self) -> Taken:
        """Return what has arrived since the last call. Does not wait."""

    def acknowledge(self, deliveries: Collection[int]) -> None:
        """Let the carrier forget these outcomes and jobs, because the database has stored them."""

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        """Ask the carrier not to begin these jobs, if it is able to."""

    @property
    def is_blocked(self) -> bool:
        """Whether the carrier accepts no jobs at the moment, because it lacks memory or disk space."""

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when there is something to take."""

    def close(self) -> None:
        """Close the connection, if it is open. Raises nothing."""


FIRST_CONNECT_DELAY, LONGEST_CONNECT_DELAY = 0.25, 10.0
"""Seconds until the next try after a failure: the first delay doubles with each failure, up to the longest."""

CONNECT_TIME = 120.0
"""Opening the connection may take this many seconds: up to 10 for each step, with one step per queue."""


class CarrierConnection(Service):
    """A service of the relay that opens the connection to the carrier, and reopens it after errors."""

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
        """home: returns the place for outcomes, made by `home_of`. While it is empty, no connection is opened.

        lost: called after the connection broke. stamp: called before each try, with the seconds that the try may take.
        """
        self.carrier = carrier
        self.is_open = False
        self._relay_name, self._get_home, self._call_when_lost, self._stamp = who, home, lost, stamp
        self._failures, self._retry_at = 0, 0.0

    @property
    def due_at(self) -> float:
        return NEVER if self.is_open or not self._get_home() else self._retry_at

    def run(self, now: float) -> None:
        self._stamp(CONNECT_TIME)
        with self.handling_errors():
            self.carrier.home = self._get_home()
            self.carrier.connect()
            self.is_open = True
            write_log = relay_logs.carrier_back if self._failures else relay_logs.carrier_reached
            write_log(self._relay_name, self.carrier.name)
            self._failures = 0

    @property
    def files(self) -> list[int]:
        """The file descriptor to wait for, which is readable when the carrier has sent something; empty if closed."""
        return [self.carrier.fileno()] if self.is_open else []

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        """Run a block that uses the carrier. If the carrier fails, close the connection instead of raising."""
        try:
            yield
        except (CarrierUnreachable, CarrierMisconfigured) as error:
            was_open, self.is_open = self.is_open, False
            self.carrier.close()
            self._failures += 1
            longest = min(LONGEST_CONNECT_DELAY, FIRST_CONNECT_DELAY * 2 ** min(self._failures, 10))
            delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
            self._retry_at = time.monotonic() + delay
            relay_logs.carrier_lost(self._relay_name, self.carrier.name, error, delay)
            if was_open:
                self._call_when_lost()

    def acknowledge(self, deliveries: Collection[int]) -> None:
        """Acknowledge these deliveries. If the connection is closed, do nothing: a new one delivers them again."""
        if deliveries and self.is_open:
            with self.handling_errors():
                self.carrier.acknowledge(deliveries)

    def close(self) -> None:
        self.is_open, self._retry_at = False, NEVER
        self.carrier.close()
