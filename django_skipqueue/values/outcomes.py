"""The outcome of an attempt, and the exceptions `Retry`, `Snooze` and `Discard`, by which a task chooses its outcome.

The outcome is decided before anything is written. `values.backoff` decides it if the task raised an exception.

`LostLease` tells from the columns of a job why a worker has lost the lease of the job.
"""

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from ..exceptions import InvalidOption
from .codec import clean, shorten
from .tracebacks import cut, formatted, place

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 16_000
ERROR_NAME_LIMIT = 200
"""The most characters of a name in an error entry. These names are part of a primary key, so they must be short."""

Delay = timedelta | float


LONGEST_DELAY = timedelta(days=1000 * 365)
"""Longer delays are cut to this delay, because Python's years end with 9999. A longer delay is mostly a mistake, such
as a number of milliseconds."""


def seconds(delay: Delay) -> float:
    """Convert a delay to seconds, at least 0 and at most `LONGEST_DELAY`."""
    delay_seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return min(max(0.0, delay_seconds), LONGEST_DELAY.total_seconds())


def checked_seconds(name: str, delay: Delay) -> float:
    """Convert a delay to seconds. Raises `InvalidOption`, which mentions `name`, if `delay` is not a delay."""
    try:
        return seconds(delay)
    except (TypeError, ValueError):
        raise InvalidOption(f"{name} must be a number of seconds or a timedelta, not {delay!r}.") from None


def _check(error: Exception, reason: object, after: Delay | None) -> None:
    """Raise `InvalidOption` if a delay was passed as the reason, or if `after` is not a delay."""
    name = type(error).__name__
    if isinstance(reason, int | float | timedelta):
        raise InvalidOption(f"The reason of {name} is a text, not {reason!r}. For a delay say {name}(after=…).")
    if after is not None:
        checked_seconds(f"after of {name}", after)


class Retry(Exception):
    """A task raises this to be run again, `after` a delay, or else after its backoff. The attempt counts."""

    __module__ = "django_skipqueue"  # the module that users import it from, as shown in a job's `errors`

    def __init__(self, reason: str = "The task asked to be retried.", *, after: Delay | None = None) -> None:
        _check(self, reason, after)
        super().__init__(reason)
        self.after = after


class Snooze(Exception):
    """A task that cannot run yet raises this to be run again `after` a delay. The attempt does not count."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "", *, after: Delay) -> None:
        _check(self, reason, after)
        super().__init__(reason)
        self.after = after


class Discard(Exception):
    """A task raises this if its job is no longer wanted. The job does not count as a success, and is not retried."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "The task discarded its job.") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt changes its job, for example to `completed`. `settle` writes the outcome to the database."""

    status: Literal["completed", "scheduled", "failed", "discarded"]
    delay: float = 0.0
    """Seconds until a `scheduled` job is due. With 0, the job is queued at once."""
    refund: int = 0
    """Subtracted from the job's attempts: 1 for a snooze, else 0."""
    result: str | None = None
    """The task's return value as JSON; `None` if the task returned `None`."""
    last_error: str | None = None
    """The exception's class and message in one line, for lists of jobs."""
    error: dict[str, Any] | None = None
    """The entry for the job's column `errors`, made by `error_entry`."""
    is_unknown: bool = False
    """Whether the task is not registered in this worker."""
    is_held: bool = False
    """Whether a part holds the job: it is blocked until the part lets it go on."""
    is_release: bool = False
    """Whether the worker stops, and therefore releases the job instead of settling it."""
    notes: str | None = None
    """A JSON object with the attempt's progress and log; `None` if the attempt noted nothing."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the task raised, for the log and for signal receivers. It is not written to the database."""

    @property
    def next_status(self) -> str:
        """The job's status after the outcome is written: `queued` instead of `scheduled` if the job is due at once."""
        if self.is_held:
            return "blocked"
        return "queued" if self.status == "scheduled" and self.delay <= 0 else self.status


COMPLETED = Outcome("completed")


class EndAttempt(BaseException):
    """Raised in the code of a task by a part that ends the attempt with this outcome.

    Not an Exception: a task's own `except Exception` must not keep it running.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the attempt ends here, and the job goes on later")
        self.outcome = outcome


class Settlement(NamedTuple):
    """An outcome, with the lease that gives the right to write it. `settle` takes a list of settlements."""

    job_id: int
    lease: int
    outcome: Outcome
    started: float | None = None
    """When the attempt started, by this process's monotonic clock; `None` means when the job was claimed."""
    ended: float | None = None
    """When the attempt ended, by this process's monotonic clock; `None` means now."""

    @property
    def duration_ms(self) -> float:
        """The duration of the attempt in milliseconds; 0 if it is not known."""
        return 0.0 if self.started is None or self.ended is None else (self.ended - self.started) * 1000


def error_entry(
    error: BaseException, *, attempt: int, worker: str, duration_ms: float, wait_ms: float | None = None
) -> dict[str, Any]:
    """Describe a failed attempt for the job's column `errors`, in short strings that PostgreSQL can store.

    wait_ms: how long the job had been due when the attempt began; `None` if this is unknown.
    Removes the frames of this package from the error's traceback.
    """
    cut(error)
    function, line = place(error)
    return {
        "attempt": attempt,
        "worker": worker,
        "duration_ms": round(duration_ms, 3),
        **({} if wait_ms is None else {"wait_ms": round(wait_ms, 3)}),
        "exception": shorten(_class_name(error), ERROR_NAME_LIMIT),
        "place": shorten(function, ERROR_NAME_LIMIT),
        "line": line,
        "message": clean(_message(error), MESSAGE_LIMIT),
        "traceback": clean(formatted(error), TRACEBACK_LIMIT),
    }


def summary(error: BaseException) -> str:
    """Describe an exception in one line, for lists and logs: its class, and the first line of its message."""
    line = first_line(error)
    return shorten(f"{type(error).__name__}: {line}" if line else type(error).__name__)


def first_line(error: BaseException) -> str:
    """The first line of the exception's message that is not blank; empty if the message has no such line."""
    return next((line.strip() for line in _message(error).splitlines() if line.strip()), "")


def _class_name(error: BaseException) -> str:
    error_class = type(error)
    try:
        return f"{error_class.__module__}.{error_class.__qualname__}"
    except BaseException:  # the job must get its outcome even if the class has a strange `__module__`
        return error_class.__name__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as str_error:  # the job must get its outcome even if `__str__` of the exception raises
        return f"<its message could not be read: {type(str_error).__name__}>"


class LostLease(NamedTuple):
    """Columns of a job that show why a lease of the job is no longer valid. All are `None` if the job was deleted.

    Each settle, release, recovery and cancel raises the job's lease number by 1. A release removes the worker's id. A
    recovery sets `deaths`, and its own `last_error`. An outcome empties `deaths`, unless the task was unknown.
    """

    raised_by: int | None
    """How much higher the job's lease number is now than when the worker held the lease."""
    status: str | None
    locked_by: str | None
    last_error: str | None
    errors: str | None
    """A JSON list, not yet decoded."""
    has_deaths: bool | None
    is_ended_by_hand: bool | None
    """Whether an operator finished the job, and nothing has changed the job since."""

    @property
    def is_completed(self) -> bool:
        """Whether the worker that held the lease has completed the job. No other process can complete it."""
        return self.raised_by == 1 and self.status == "completed"

    @property
    def cancel_reason(self) -> str | None:
        """The operator's reason if the job was cancelled while the worker held the lease; otherwise `None`."""
        return self.last_error if self.raised_by == 1 and self.is_ended_by_hand else None

    def written_status(self, outcome: Outcome) -> str | None:
        """Return the status of the outcome that the worker has written under this lease, which may be `outcome` itself.

        Return `None` if the worker has not written an outcome, or if the row does not show the outcome. Once another
        worker has claimed the job, only an outcome with an error can be recognized, by its entry in `errors`.
        """
        if self.raised_by != 1:
            return outcome.status if self._has_entry(outcome) else None
        if self.is_ended_by_hand:
            return None
        if self.status in ("completed", "discarded"):
            return self.status
        is_recovered = self.has_deaths and self.last_error != outcome.last_error
        if is_recovered or not self.locked_by:
            return None
        return "failed" if self.status == "failed" else "scheduled"

    def _has_entry(self, outcome: Outcome) -> bool:
        """Whether `errors` has the error of this outcome. The settle statement has added keys to the entry."""
        if outcome.error is None:
            return False
        entries = [entry for entry in json.loads(self.errors or "[]") if isinstance(entry, dict)]
        return any(outcome.error.items() <= entry.items() for entry in entries)
