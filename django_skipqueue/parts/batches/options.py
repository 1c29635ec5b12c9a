"""The options `after` and `after_failure`, by which a job waits for other jobs; and the call method `after`. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...exceptions import InvalidOption
from ...values.bounds import check_columns
from ...values.part import PartOptions
from ...values.records import LARGEST_ID, JobReference, JobSpec, parse_handle

if TYPE_CHECKING:
    from ...jobs.task_call import TaskCall
    from ...models import Job

AfterFailure = Literal["wait", "discard", "run"]


class AfterOptions(TypedDict, total=False):
    """The options that this part adds to `.using()`."""

    after: Sequence[Any] | None
    after_failure: AfterFailure | None


@dataclass(frozen=True, kw_only=True)
class After(PartOptions):
    """The jobs that must be finished before a job may run."""

    after: tuple[JobReference, ...] = ()
    """Users give `Job`s, ids, handles, or results of `django.tasks`."""
    after_failure: AfterFailure = "wait"

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that cannot be used."""
        object.__setattr__(self, "after", references_to(self.after))
        check_columns({"after_failure": self.after_failure})

    def in_spec(self, spec: JobSpec) -> JobSpec:
        return spec._replace(after=self.after, after_failure=self.after_failure)


OPTIONS = After


class AfterCall:
    """The methods that this part adds to `TaskCall`."""

    spec: JobSpec

    def after(self, *jobs: "Job | int | Any", on_failure: AfterFailure = "wait") -> "TaskCall":
        """Make the call wait until these jobs are finished. `jobs`: `Job`s, ids, or results of `django.tasks`.

        on_failure: what happens if one of these jobs fails or is discarded: `wait` until that job is retried and
        completes, `discard` the call, or `run` it anyway. Raises `InvalidOption` for other values.
        """
        return self.waiting_for(references_to(jobs), after_failure=on_failure)

    def waiting_for(self, jobs: tuple[JobReference, ...], *, after_failure: AfterFailure) -> "TaskCall":
        """Make the call wait as `after` does, but for references to jobs, which many calls can share."""
        call: Any = self
        waiting: TaskCall = replace(call, spec=self.spec._replace(after=jobs, after_failure=after_failure))
        return waiting


def references_to(jobs: Iterable[Any]) -> tuple[JobReference, ...]:
    """Return a reference to each job. `jobs`: `Job`s, ids, handles, or results of `django.tasks`.

    Raises `InvalidOption` for any other value.
    """
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise InvalidOption(f"after must be a list of jobs, not {jobs!r}.")
    try:
        references = tuple(reference_to(job) for job in jobs)
        if all(0 < reference.id <= LARGEST_ID for reference in references):
            return references
        raise ValueError
    except (TypeError, ValueError):
        raise InvalidOption(f"after must be a list of jobs that were deferred, not {jobs!r}.") from None


def reference_to(job: Any) -> JobReference:
    """Return a reference to a job, given as a `Job`, an id, a handle, or a result of `django.tasks`.

    Raises `TypeError` or `ValueError` for any other value.
    """
    if isinstance(job, int) and not isinstance(job, bool):
        return JobReference(job, None)
    if isinstance(job, str):
        return parse_handle(job)
    if state := getattr(job, "_state", None):
        return JobReference(int(job.id), state.db)
    job_id: Any = getattr(job, "id", None)
    reference = parse_handle(job_id) if isinstance(job_id, str) else JobReference(int(job_id), None)
    return reference if reference.database else reference._replace(database=getattr(job, "database", None))
