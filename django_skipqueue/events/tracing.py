"""Call tracers, such as those of OpenTelemetry and Sentry, before and after each INSERT of jobs and each attempt.

Without a tracer, nothing is called and nothing is stored. If a tracer raises an exception, the exception is logged. It
reaches neither the caller of `.defer()` nor the task.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..conf import settings
from ..values.codec import decode, encode
from ..values.outcomes import Outcome
from ..values.records import ClaimedJob, JobSpec
from . import log_context
from .log_format import job_name
from .logs import logger


@dataclass
class TracedInsert:
    """One INSERT of jobs, as a tracer sees it."""

    given: JobSpec
    """The caller's spec: the columns that all jobs share."""
    size: int
    """The number of jobs."""
    database: str
    """The alias of the database into which the jobs are inserted."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What tracers add to the metadata of each job. Each tracer adds one key, which is the tracer's name."""
    job_ids: list[int] = field(default_factory=list)
    """The ids of the jobs. Empty until the jobs are inserted."""

    @property
    def spec(self) -> JobSpec:
        """The caller's spec with the metadata that tracers have added."""
        if not self.metadata:
            return self.given
        return self.given._replace(metadata=encode("metadata", decode(self.given.metadata) | self.metadata))


AfterInsert = Callable[[BaseException | None], object]
"""A tracer's function that is called after the INSERT, with the error or `None`."""

Ended = Callable[[Outcome], object]
"""A tracer's function that is called at the end of an attempt, before the outcome is written. It may add keys to
`outcome.error`."""


class Tracer(Protocol):
    """The methods, and the functions that they return, are called in the thread or coroutine of the traced code."""

    def sending(self, batch: TracedInsert) -> AfterInsert | None:
        """Called before an INSERT of jobs. Returns the function to call afterwards, or `None`."""

    def attempt(self, job: ClaimedJob) -> Ended | None:
        """Called before an attempt. Returns the function to call afterwards, or `None`. See also `attempted_job`."""


def attempted_job(job: ClaimedJob) -> str:
    """The id of a job whose attempt begins, for display; if several databases hold queues, the job's handle."""
    return job_name(log_context.database.get() or settings.database, job.id)


tracers: list[Tracer] = []
"""The tracers in use, the outermost first. A forked process inherits them."""


def use(tracer: Tracer) -> None:
    """Use this tracer from now on, instead of an earlier tracer of the same class. Call this before workers start."""
    tracers[:] = [*(other for other in tracers if type(other) is not type(tracer)), tracer]


@contextmanager
def sending(spec: JobSpec, size: int, database: str) -> Iterator[TracedInsert]:
    """Trace an INSERT of `size` jobs, which the `with` block does.

    The block must insert the jobs with the `spec` of the yielded object, and set the object's `job_ids`.
    """
    batch = TracedInsert(spec, size, database)
    end_functions = [_guarded(tracer.sending, batch) for tracer in tracers]
    error: BaseException | None = None
    try:
        yield batch
    except BaseException as raised:
        error = raised
        raise
    finally:
        for end_function in reversed(end_functions):
            if end_function is not None:
                _guarded(end_function, error)
        error = None  # break the reference cycle: the error's traceback refers to this frame


def attempt(job: ClaimedJob) -> Ended:
    """Begin to trace an attempt. The caller calls the returned function with the outcome when the attempt ends."""
    end_functions = [_guarded(tracer.attempt, job) for tracer in tracers]

    def ended(outcome: Outcome) -> None:
        for end_function in reversed(end_functions):
            if end_function is not None:
                _guarded(end_function, outcome)

    return ended


def _guarded(function: Callable[..., Any], argument: object) -> Any:
    """Call a function of a tracer. If it raises, log the exception and return `None`."""
    try:
        return function(argument)
    except Exception as error:  # not `JobInterrupted`, which ends the attempt that runs in this thread
        with suppress(Exception):  # the project's logging may be what raised
            logger.error("A tracer raised: %r", error, exc_info=error)
        return None
