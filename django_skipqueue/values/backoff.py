"""Backoffs: functions that compute the delay before the next attempt.

A backoff is any function that takes the number of the failed attempt (1, 2, …) and returns seconds. The functions here
make the usual backoffs. Each backoff varies its delays at random by `jitter` (0.1: up to 10 % shorter or longer), so
that jobs which failed at the same time are not retried at the same time.

A number from which no delay can be computed raises `InvalidOption` when the backoff is made, not when a job fails.

`RetryPolicy` uses a backoff to decide the outcome of an attempt that raised an exception. It writes nothing.
"""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..exceptions import InvalidOption, RowMissing, StepFailed
from .codec import shorten
from .outcomes import Discard, Outcome, Retry, Snooze, first_line, seconds, summary

Backoff = Callable[[int], float]


def exponential(base: float = 2.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """Delay by `base ** attempt` seconds, at most `cap`: 2, 4, 8, … with the defaults."""
    _check("base", base, least=1)
    _check_spread(jitter, cap)

    def delay(attempt: int) -> float:
        try:
            seconds = float(base) ** attempt
        except OverflowError:
            seconds = cap
        return _with_jitter(seconds, jitter, cap)

    return delay


def linear(step: float = 30.0, *, cap: float = 15 * 60, jitter: float = 0.1) -> Backoff:
    """Delay by `step * attempt` seconds, at most `cap`."""
    _check("step", step)
    _check_spread(jitter, cap)
    return lambda attempt: _with_jitter(step * attempt, jitter, cap)


def constant(seconds: float = 60.0, *, jitter: float = 0.1) -> Backoff:
    """Delay by this number of seconds after every attempt."""
    _check("seconds", seconds)
    _check_spread(jitter)
    return lambda _attempt: _with_jitter(seconds, jitter)


def check_backoff(backoff: object) -> None:
    """Raise `InvalidOption` unless `backoff` can be called with the number of an attempt."""
    if backoff in (exponential, linear, constant):
        name = getattr(backoff, "__name__", "")
        raise InvalidOption(f"backoff must be what {name} returns, not {name} itself: say backoff={name}(…).")
    if not callable(backoff) or not _takes_a_number(backoff):
        raise InvalidOption(
            f"backoff must be a function from the number of the failed attempt to seconds, not {backoff!r}. "
            "For the same delay each time, say django_skipqueue.values.backoff.constant(…)."
        )


def _takes_a_number(backoff: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(backoff)
    except ValueError:  # a function written in C may have no signature
        return True
    try:
        signature.bind(1)
    except TypeError:
        return False
    return True


def _check_spread(jitter: float, cap: float = math.inf) -> None:
    _check("jitter", jitter, most=1)
    _check("cap", cap)


def _check(name: str, value: object, *, least: float = 0, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        allowed = f"of {least} or more" if most == math.inf else f"from {least} to {most:g}"
        raise InvalidOption(f"{name} of a backoff must be a number {allowed}, not {value!r}.")


def _with_jitter(seconds: float, jitter: float, cap: float = math.inf) -> float:
    """Add the jitter, and keep the delay below the cap. Shrink it first, so that delays at the cap vary as well."""
    return min(seconds, cap / (1 + jitter)) * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 (no secret depends on it)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides whether a job is retried, failed or discarded after its task raised an exception."""

    backoff: Callable[[int], float] = field(default_factory=exponential)
    """Takes the number of the failed attempt (1, 2, …), and returns the seconds before the next attempt."""
    retry_on: tuple[type[BaseException], ...] | None = None
    """Only these exceptions are retried. `None` means all exceptions except `RowMissing` and `StepFailed`."""
    discard_on: tuple[type[BaseException], ...] = ()
    """These exceptions discard the job at once. They take precedence over `retry_on`."""

    def decide(self, error: BaseException, entry: dict[str, Any], *, attempt: int, max_attempts: int) -> Outcome:
        """Decide the outcome of an attempt that raised `error`. `entry` describes the error, for the job's `errors`."""
        line = summary(error)
        if isinstance(error, Snooze):
            return Outcome("scheduled", delay=seconds(error.after), refund=1)
        if isinstance(error, Discard):
            return Outcome("discarded", last_error=shorten(first_line(error)), error=entry)
        if isinstance(error, self.discard_on):
            return Outcome("discarded", last_error=line, error=entry)
        if attempt >= max_attempts or not self._retries(error):
            return Outcome("failed", last_error=line, error=entry)
        return Outcome("scheduled", delay=self._delay(error, attempt), last_error=line, error=entry)

    def _retries(self, error: BaseException) -> bool:
        if self.retry_on is None:
            return not isinstance(error, RowMissing | StepFailed)  # neither changes with the next attempt
        return isinstance(error, (Retry, *self.retry_on))

    def _delay(self, error: BaseException, attempt: int) -> float:
        if isinstance(error, Retry) and error.after is not None:
            return seconds(error.after)
        return seconds(self.backoff(attempt))
