"""The seam for tracers, such as those of OpenTelemetry and Sentry: they wrap each INSERT of jobs, and each attempt.

Invariant: without a tracer nothing is called, and nothing is stored. An exception of a tracer is logged, and reaches
neither the caller of `.defer()` nor the task.
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
    """The jobs of one INSERT."""

    given: JobSpec
    """The columns that the caller gave."""
    size: int
    database: str
    """The alias of the database that the jobs are put into."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Added to the metadata of each job. A tracer uses one key, which is its name."""
    job_ids: list[int] = field(default_factory=list)
    """The ids of the jobs, once the jobs are inserted."""

    @property
    def spec(self) -> JobSpec:
        """The columns, with what the tracers have added."""
        if not self.metadata:
            return self.given
        return self.given._replace(metadata=encode("metadata", decode(self.given.metadata) | self.metadata))


AfterInsert = Callable[[BaseException | None], object]
"""Called after the INSERT, with its error."""

Ended = Callable[[Outcome], object]
"""Called at the end of the attempt with its outcome, before that is written. May add keys to `outcome.error`."""


class Tracer(Protocol):
    """Both methods, and the functions that they return, are called in the thread or coroutine of the code they wrap."""

    def sending(self, batch: TracedInsert) -> AfterInsert | None:
        """Called before an INSERT. `None`: the INSERT is not traced."""

    def attempt(self, job: ClaimedJob) -> Ended | None:
        """Called before an attempt. `None`: the attempt is not traced. `attempted_job` is the name of its job."""


def attempted_job(job: ClaimedJob) -> str:
    """The id of the job whose attempt begins; the handle of the job if several databases hold queues."""
    return job_name(log_context.database.get() or settings.database, job.id)


tracers: list[Tracer] = []
"""The tracers in use, the outermost first. A forked process inherits them."""


def use(tracer: Tracer) -> None:
    """Use this tracer from now on, in place of an earlier tracer of its class. Call this before a worker starts."""
    tracers[:] = [*(other for other in tracers if type(other) is not type(tracer)), tracer]


@contextmanager
def sending(spec: JobSpec, size: int, database: str) -> Iterator[TracedInsert]:
    """Trace the block, which inserts `size` jobs with the `spec` of the yielded object, and sets its `job_ids`."""
    batch = TracedInsert(spec, size, database)
    started = [_guarded(tracer.sending, batch) for tracer in tracers]
    error: BaseException | None = None
    try:
        yield batch
    except BaseException as raised:
        error = raised
        raise
    finally:
        for end in reversed(started):
            if end is not None:
                _guarded(end, error)
        error = None  # break the cycle: its traceback refers to this frame


def attempt(job: ClaimedJob) -> Ended:
    """Trace an attempt, until the returned function is called with its outcome."""
    started = [_guarded(tracer.attempt, job) for tracer in tracers]

    def ended(outcome: Outcome) -> None:
        for end in reversed(started):
            if end is not None:
                _guarded(end, outcome)

    return ended


def _guarded(call: Callable[..., Any], given: object) -> Any:
    try:
        return call(given)
    except Exception as error:  # not `JobInterrupted`, which ends the attempt that runs in this thread
        with suppress(Exception):  # the project's logging may be what raised
            logger.error("A tracer raised: %r", error, exc_info=error)
        return None
