"""Functions that wait for a condition instead of sleeping."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

DEADLINE = 40.0
"""Seconds to wait at most. Only a test that fails waits so long, so this is far more than a busy machine takes."""


def wait_until(condition: Callable[[], T], what: str = "", *, deadline: float = DEADLINE) -> T:
    """Return the first true value of `condition`; fail when `deadline` seconds have gone by without one."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"After {deadline:g} s still not so: {what or condition}")
        time.sleep(0.005)
    return value


def collect(take: Callable[[], Iterable[T]], number: int, what: str = "") -> list[T]:
    """Call `take` until all it has returned is `number` values or more, and return them."""
    taken: list[T] = []

    def are_enough() -> bool:
        taken.extend(take())
        return len(taken) >= number

    wait_until(are_enough, what)
    return taken


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise an error in a block of the main thread that takes longer: an endless loop must not stop the suite."""

    def stop(*_: Any) -> NoReturn:
        raise AssertionError(f"Not finished after {seconds:g} s.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
