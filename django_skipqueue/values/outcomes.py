"""The outcome of an attempt, and the exceptions by which a task chooses it: `Retry`, `Snooze` and `Discard`.

Pure: an outcome is decided before anything is written. `values.backoff` decides it from what the task raised.

`LostLease` reads from the row of a job how a lease has ended.
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
"""Characters of the names in an error entry: a part has them in a primary key."""

Delay = timedelta | float


LONGEST_DELAY = timedelta(days=1000 * 365)
"""Longer delays are cut to this delay. Most are milliseconds by mistake, and Python's years end with 9999."""


def seconds(delay: Delay) -> float:
    """A delay as seconds, from 0 to `LONGEST_DELAY`."""
    given = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return min(max(0.0, given), LONGEST_DELAY.total_seconds())


def checked_seconds(name: str, delay: Delay) -> float:
    """A delay as seconds. Raises `InvalidOption`, with this name, for an object that is no delay."""
    try:
        return seconds(delay)
    except (TypeError, ValueError):
        raise InvalidOption(f"{name} must be a number of seconds or a timedelta, not {delay!r}.") from None


def _check(error: Exception, reason: object, after: Delay | None) -> None:
    """Raise `InvalidOption` for a delay in place of the reason, or for an `after` that is no delay."""
    name = type(error).__name__
    if isinstance(reason, int | float | timedelta):
        raise InvalidOption(f"The reason of {name} is a text, not {reason!r}. For a delay say {name}(after=…).")
    if after is not None:
        checked_seconds(f"after of {name}", after)


class Retry(Exception):
    """Raised by a task to be run again, `after` a delay or its backoff. Costs an attempt."""

    __module__ = "django_skipqueue"  # the module that users import it from, as shown in a job's `errors`

    def __init__(self, reason: str = "The task asked to be retried.", *, after: Delay | None = None) -> None:
        _check(self, reason, after)
        super().__init__(reason)
        self.after = after


class Snooze(Exception):
    """Raised by a task that cannot run yet, to be run again `after` a delay. Costs no attempt."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "", *, after: Delay) -> None:
        _check(self, reason, after)
        super().__init__(reason)
        self.after = after


class Discard(Exception):
    """Raised by a task whose job is no longer wanted: no success, and no more attempts."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "The task discarded its job.") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of an attempt on its job. `settle` writes it."""

    status: Literal["completed", "scheduled", "failed", "discarded"]
    delay: float = 0.0
    """Seconds until a scheduled job is due; with 0 the job is queued at once."""
    refund: int = 0
    """Subtracted from the job's attempts: 1 for a snooze, else 0."""
    result: str | None = None
    """The task's return value as JSON text; `None` if it returned `None`."""
    last_error: str | None = None
    """One line for lists: the exception's class and message."""
    error: dict[str, Any] | None = None
    """The entry for the job's `errors`: exception, message, traceback, attempt, worker, duration_ms, wait_ms."""
    is_unknown: bool = False
    """Whether the task is not registered in this worker."""
    notes: str | None = None
    """The progress and the log of the attempt, as a JSON object; `None` if it has noted nothing."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the task raised, for the log and for receivers; not written."""

    @property
    def next_status(self) -> str:
        """The job's status after the settle: `queued` instead of `scheduled` if the job is due at once."""
        return "queued" if self.status == "scheduled" and self.delay <= 0 else self.status


COMPLETED = Outcome("completed")


class Settlement(NamedTuple):
    """An outcome with the lease that allows to write it: one item for `settle`."""

    job_id: int
    lease: int
    outcome: Outcome
    started: float | None = None
    """The start of the attempt, in monotonic seconds of this process; `None`: when the job was claimed."""
    ended: float | None = None
    """The end of the attempt, by the same clock; `None`: now."""

    @property
    def duration_ms(self) -> float:
        """The duration of the attempt in milliseconds; 0 if it is not known."""
        return 0.0 if self.started is None or self.ended is None else (self.ended - self.started) * 1000


def error_entry(
    error: BaseException, *, attempt: int, worker: str, duration_ms: float, wait_ms: float | None = None
) -> dict[str, Any]:
    """Describe a failed attempt for the job's `errors`. Its texts are short enough, and PostgreSQL can store them.

    wait_ms: how long the job had been due when the attempt began; `None`: unknown.
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
    """One line for lists and logs: the exception's class and the first line of its message."""
    line = first_line(error)
    return shorten(f"{type(error).__name__}: {line}" if line else type(error).__name__)


def first_line(error: BaseException) -> str:
    """The first line of the exception's message that is not blank; empty if there is none."""
    return next((line.strip() for line in _message(error).splitlines() if line.strip()), "")


def _class_name(error: BaseException) -> str:
    kind = type(error)
    try:
        return f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:  # a class with a module of its own making must not cost the job its outcome
        return kind.__name__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # an exception whose own __str__ raises must not cost the job its outcome
        return f"<its message could not be read: {type(broken).__name__}>"


class LostLease(NamedTuple):
    """A lease that is no longer valid, and the columns of its job. All are `None` if the row is gone.

    A settle, a release, a recovery and a cancel each raise the lease by 1. A release removes the worker's id. A
    recovery sets `deaths`, and a `last_error` of its own. An outcome empties `deaths`, except that of an unknown task.
    """

    raised_by: int | None
    """The growth of the lease since it was held."""
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
        """Whether the holder itself has completed the job: nothing else can."""
        return self.raised_by == 1 and self.status == "completed"

    @property
    def cancel_reason(self) -> str | None:
        """The reason, if the job was cancelled under this lease; else `None`."""
        return self.last_error if self.raised_by == 1 and self.is_ended_by_hand else None

    def written_status(self, outcome: Outcome) -> str | None:
        """The status of the outcome that the holder has written under this lease, which may be `outcome`.

        `None` if the holder has written no outcome, or if the row does not show it. After the job has changed hands
        again, only an outcome with an error can be recognized: by its entry in `errors`.
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
        """Whether the error of this outcome is in `errors`. The settle has added columns to its entry."""
        if outcome.error is None:
            return False
        entries = [entry for entry in json.loads(self.errors or "[]") if isinstance(entry, dict)]
        return any(outcome.error.items() <= entry.items() for entry in entries)
