"""Backoffs: functions that compute the delay before the next attempt.

A backoff is any function from the number of the failed attempt (1, 2, …) to seconds. The functions here make the usual
backoffs. Each varies its delays at random by `jitter` (0.1: up to 10 % shorter or longer), so that jobs that failed at
the same time are not retried at the same time.
"""

import math
import random
from collections.abc import Callable

Backoff = Callable[[int], float]


def exponential(base: float = 2.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """Delay by `base ** attempt` seconds, at most `cap`: 2, 4, 8, … with the defaults."""

    def delay(attempt: int) -> float:
        try:
            seconds = base**attempt
        except OverflowError:
            seconds = cap
        return _spread(seconds, jitter, cap)

    return delay


def linear(step: float = 30.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """Delay by `step * attempt` seconds, at most `cap`."""
    return lambda attempt: _spread(step * attempt, jitter, cap)


def constant(seconds: float = 60.0, *, jitter: float = 0.1) -> Backoff:
    """Delay by the same number of seconds after every attempt."""
    return lambda _attempt: _spread(seconds, jitter)


def _spread(seconds: float, jitter: float, cap: float = math.inf) -> float:
    """Add the jitter, and keep the delay below the cap: shrink it first, so that delays at the cap differ as well."""
    return min(seconds, cap / (1 + jitter)) * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 (no secret depends on it)
