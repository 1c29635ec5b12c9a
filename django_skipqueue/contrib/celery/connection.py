"""The connection of a relay to its carrier: opened again with a back-off when it breaks.

Invariant: an error of the carrier ends no process, and delays nothing but what needs the carrier.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...values.records import NEVER
from ...worker.loop import Service
from . import logs as relay_logs
from .carrier import Carrier, CarrierMisconfigured, CarrierUnreachable

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
        stamp: Callable[[float], object] = lambda _: None,
    ) -> None:
        """`home` returns the address for outcomes, made by `home_of`. While that is empty, no connection is opened.

        `lost` is called after the connection broke, and `stamp` with the seconds that opening it may take.
        """
        self.carrier = carrier
        self.is_open = False
        self._who = who
        self._home = home
        self._lost = lost
        self._stamp = stamp
        self._failures = 0
        self._retry_at = 0.0

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
