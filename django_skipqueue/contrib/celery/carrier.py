"""The seam between a relay and a carrier, the engine outside of PostgreSQL that runs jobs.

Invariant: nobody acknowledges a message before the next party has what it says. The relay hands a job over after the
carrier has confirmed it, and acknowledges an outcome after its settle is committed.

The relay's connection to it is opened again with a back-off when it breaks. Invariant: an error of the carrier ends no
process, and delays nothing but what needs the carrier.
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
    """The id of a carrier's row among the workers: stable, in the form of a worker's."""
    return f"{name}:{blake2b(name.encode(), digest_size=6, person=b'carrier').hexdigest()}"


def carrier_of(locked_by: str) -> str:
    """The name of the carrier that holds a job, by the `locked_by` of its row; empty: no carrier holds it."""
    name = worker_name(locked_by)
    return name if name != locked_by and carrier_id(name) == locked_by else ""


def home_of(alias: str, since: datetime) -> str:
    """The address for the outcomes of a carrier's jobs: the alias of their database, and a mark of that database.

    Two projects may share a broker, and have the same alias. `since`: when the carrier's row was written first.
    """
    return f"{alias}@{int(since.timestamp() * 1_000_000):x}"


def alias_of(home: str) -> str:
    return home.rpartition("@")[0] or home


class ReturnedOutcome(NamedTuple):
    delivery: int
    """What `acknowledge` takes."""
    attempt: Attempt


class ReturnedJob(NamedTuple):
    delivery: int
    ref: LeaseRef | None
    """`None`: the message is about no job."""
    reason: str
    """`expired`: it has waited too long. `delivery_limit`: each worker that got it is gone. `maxlen`: the queue is
    longer than a policy of the broker allows. `rejected`: the worker cannot read it, or refuses it. `unreadable`: it
    has run, but the relay cannot read its outcome."""
    job: ClaimedJob | None
    """The job, without arguments that are large; `None` if the message cannot be read."""
    problem: str = ""
    """Which message cannot be read, and why."""


class BegunJob(NamedTuple):
    """A process of the carrier begins a job that another process had, which is gone."""

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
    """What came from the carrier since the last call of `take`."""

    confirmed: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier holds from now on."""
    refused: list[LeaseRef] = field(default_factory=list)
    """The jobs that the carrier has not taken: its queue is full, or gone."""
    outcomes: list[ReturnedOutcome] = field(default_factory=list)
    jobs: list[ReturnedJob] = field(default_factory=list)
    begun: list[BegunJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.refused or self.outcomes or self.jobs or self.begun)


class Carrier(Protocol):
    """Used by the thread of the relay's control loop. Every method may raise `CarrierUnreachable`.

    After that, the relay calls `close` and then `connect`. Deliveries of the old connection come again in the new one,
    and what was published but not confirmed is unknown: the relay releases it.
    """

    name: str
    home: str
    """The address for outcomes, made by `home_of`. The relay sets it before it connects."""

    def connect(self) -> None:
        """Open the connection, and declare what is lacking. Raises `CarrierMisconfigured` too."""

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        """Send jobs, except for those that are too large, and return these.

        Each of the others is in `confirmed` or `refused` of a later `take`.
        """

    def take(self) -> Taken:
        """Return what has come since the last call. Does not wait."""

    def acknowledge(self, deliveries: Collection[int]) -> None:
        """Let the carrier forget these outcomes and jobs: the database has what they say."""

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        """Ask the carrier not to begin these jobs, if it can."""

    @property
    def is_blocked(self) -> bool:
        """Whether the carrier takes no jobs for now: it lacks memory or space on its disk."""

    def fileno(self) -> int:
        """The file that can be read when there is something to take."""

    def close(self) -> None:
        """Close the connection, if one is open. Raises nothing."""


FIRST_DELAY, LONGEST_DELAY = 0.25, 10.0
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
        """`home` returns the address for outcomes, made by `home_of`. While that is empty, no connection is opened.

        `lost` is called after the connection broke, and `stamp` with the seconds that opening it may take.
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
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self._failures, 10))
            delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
            self._retry_at = time.monotonic() + delay
            relay_logs.carrier_lost(self._who, self.carrier.name, error, delay)
            if was_open:
                self._lost()

    def close(self) -> None:
        self.is_open, self._retry_at = False, NEVER
        self.carrier.close()
