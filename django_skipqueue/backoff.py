"""How long to wait before the next attempt.

A backoff is any function from the number of the attempt that failed (1, 2, …) to seconds. The factories here make the
usual ones; each spreads its delays at random by `jitter` (0.1 = up to ten per cent either way), so that jobs that
failed together do not come back together.
"""

import math
import random
from collections.abc import Callable

Backoff = Callable[[int], float]


def exponential(base: float = 2.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """`base ** attempt` seconds, never more than `cap`: 2, 4, 8, … with the defaults."""

    def delay(attempt: int) -> float:
        try:
            seconds = base**attempt
        except OverflowError:
            seconds = cap
        return _spread(seconds, jitter, cap)

    return delay


def linear(step: float = 30.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """`step * attempt` seconds, never more than `cap`."""
    return lambda attempt: _spread(step * attempt, jitter, cap)


def constant(seconds: float = 60.0, *, jitter: float = 0.1) -> Backoff:
    """The same number of seconds after every attempt."""
    return lambda _attempt: _spread(seconds, jitter)


def _spread(seconds: float, jitter: float, cap: float = math.inf) -> float:
    """Spread around what leaves room for it below the cap: at the cap itself, jobs would come back together."""
    return min(seconds, cap / (1 + jitter)) * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 (spreads load, guards nothing)
