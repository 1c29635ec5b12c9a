"""The outcome of an attempt, and the exceptions by which a task chooses it: `Retry`, `Snooze` and `Discard`.

Pure: an outcome is decided before anything is written. `retry_policy` decides it from what the task raised.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from .codec import clean, shorten
from .tracebacks import cut, formatted

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 16_000

Delay = timedelta | float


LONGEST_DELAY = timedelta(days=1000 * 365)
"""Whoever asks for more has milliseconds in mind; and Python has no years beyond 9999."""


def seconds(delay: Delay) -> float:
    """A delay as seconds, never below 0, and never beyond what a row can have."""
    asked = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return min(max(0.0, asked), LONGEST_DELAY.total_seconds())


class Retry(Exception):
    """Raised by a task to be run again, `after` a delay or its backoff. Costs an attempt."""

    __module__ = "django_skipqueue"  # whence it is imported: that is its name in a job's `errors`

    def __init__(self, reason: str = "The task asked to be retried.", *, after: Delay | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Snooze(Exception):
    """Raised by a task that cannot run yet, to be run again `after` a delay. Costs no attempt."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "", *, after: Delay) -> None:
        super().__init__(reason)
        self.after = after


class Discard(Exception):
    """Raised by a task whose job is no longer wanted: no success, and no more attempts."""

    __module__ = "django_skipqueue"

    def __init__(self, reason: str = "The task discarded its job.") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a job after an attempt. `settle` writes it."""

    status: Literal["completed", "scheduled", "failed", "discarded"]
    delay: float = 0.0
    """Seconds until a scheduled job is due; 0 puts it straight back into its queue."""
    refund: int = 0
    """Attempts given back: 1 for a snooze, else 0."""
    result: str | None = None
    """What the task returned, as JSON text; `None` for nothing."""
    last_error: str | None = None
    """One line for lists: the exception's class and message."""
    error: dict[str, Any] | None = None
    """The entry for the job's `errors`: exception, message, traceback, attempt, worker, duration_ms."""
    is_unknown: bool = False
    """Whether this worker does not know the task."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What the task raised, for the log and for receivers; never written."""

    @property
    def next_status(self) -> str:
        """The status that settling makes of it: a job that is due at once is queued."""
        return "queued" if self.status == "scheduled" and self.delay <= 0 else self.status


COMPLETED = Outcome("completed")


class Settlement(NamedTuple):
    """An outcome with the right to write it: what `settle` takes."""

    job_id: int
    lease: int
    outcome: Outcome
    started: float | None = None
    """When the attempt began, in monotonic seconds of this process; `None`: when the job was claimed."""
    ended: float | None = None
    """When it ended; `None`: now."""

    @property
    def duration_ms(self) -> float:
        """How long the attempt took, in milliseconds; 0 where that is not known."""
        return 0.0 if self.started is None or self.ended is None else (self.ended - self.started) * 1000


def error_entry(error: BaseException, *, attempt: int, worker: str, duration_ms: float) -> dict[str, Any]:
    """One attempt's failure as it is kept in the job's `errors`; capped, and free of what PostgreSQL refuses.

    Our own frames are cut off the error's traceback.
    """
    kind = type(error)
    cut(error)
    return {
        "attempt": attempt,
        "worker": worker,
        "duration_ms": round(duration_ms, 3),
        "exception": f"{kind.__module__}.{kind.__qualname__}",
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


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # an exception whose own __str__ raises must not cost the job its outcome
        return f"<its message could not be read: {type(broken).__name__}>"
