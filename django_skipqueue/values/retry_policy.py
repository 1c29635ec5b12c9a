"""Decides the outcome of an attempt that raised an exception. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..backoff import exponential
from ..exceptions import RowMissing
from .codec import shorten
from .outcomes import Discard, Outcome, Retry, Snooze, first_line, seconds, summary


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a task's exceptions have its job retried, failed or discarded."""

    backoff: Callable[[int], float] = field(default_factory=exponential)
    """From the number of the failed attempt (1, 2, …) to the seconds before the next one."""
    retry_on: tuple[type[BaseException], ...] | None = None
    """Only these exceptions are retried; `None`: all but `RowMissing`."""
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
            return not isinstance(error, RowMissing)  # a row that is gone does not come back
        return isinstance(error, (Retry, *self.retry_on))

    def _delay(self, error: BaseException, attempt: int) -> float:
        if isinstance(error, Retry) and error.after is not None:
            return seconds(error.after)
        return seconds(self.backoff(attempt))
