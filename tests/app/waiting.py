"""Functions that wait for a condition instead of sleeping."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

LEAST_PAUSE, LONGEST_PAUSE = 0.01, 0.1
"""Seconds between two checks of a condition. Most conditions query PostgreSQL, so a long wait checks less often."""

DEADLINE = 40.0
"""The longest wait in seconds. Only a failing test waits so long, so it is far more than a busy machine needs."""


def wait_until(condition: Callable[[], T], what: str = "", *, deadline: float = DEADLINE) -> T:
    """Call `condition` until it returns a true value, and return the value. Fails after `deadline` seconds."""
    began_at = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began_at
        if waited > deadline:
            raise AssertionError(f"After {deadline:g} s still not so: {what or condition}")
        time.sleep(min(max(LEAST_PAUSE, waited / 6), LONGEST_PAUSE))
    return value


def collect(take: Callable[[], Iterable[T]], count: int, what: str = "") -> list[T]:
    """Call `take` until it has returned at least `number` values in all, and return the values."""
    values: list[T] = []

    def are_enough() -> bool:
        values.extend(take())
        return len(values) >= count

    wait_until(are_enough, what)
    return values


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise an error in the `with` block if it takes longer, so that an endless loop does not block the whole suite.

    Works in the main thread only.
    """

    def stop(*_: Any) -> NoReturn:
        raise AssertionError(f"Not finished after {seconds:g} s.")

    handler_before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
