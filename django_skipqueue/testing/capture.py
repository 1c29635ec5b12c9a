"""`capture_deferred`: the jobs that are deferred within a block; and a line about each, with secrets masked."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, overload

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from ..conf import chosen_or_all
from ..console.arguments import named, redacted
from ..models import Job
from ..values.codec import shorten


class CapturedJobs(Sequence[Job]):
    """The jobs inserted since the block began, in the order of their ids.

    Within the block, each use reads the jobs again. After the block, the list has the jobs as they were at its end.
    """

    def __init__(self, aliases: Sequence[str]) -> None:
        self._jobs = [Job.objects.using(alias).order_by("pk") for alias in aliases]
        self._kept: list[Job] | None = None

    @async_unsafe("capture_deferred() sends queries: in an async test, write `async with capture_deferred()`.")
    def __enter__(self) -> "CapturedJobs":
        # Not by the highest id: fixtures may choose any ids.
        self._jobs = [jobs.exclude(pk__in=list(jobs.values_list("pk", flat=True))) for jobs in self._jobs]
        self._kept = None
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Keep the jobs that are there now, unless the block raised: then a query may be impossible."""
        self._kept = self._now() if error is None else []

    async def __aenter__(self) -> "CapturedJobs":
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, *error: Any) -> None:
        await sync_to_async(self.__exit__)(*error)

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        return self._found()[index]

    def __len__(self) -> int:
        return len(self._found())

    def __repr__(self) -> str:
        """A line for each job, for the messages of failed assertions."""
        jobs = self._found()
        return "\n".join([f"<{len(jobs)} deferred jobs>", *lines(jobs)])

    def _found(self) -> list[Job]:
        return self._now() if self._kept is None else self._kept

    def _now(self) -> list[Job]:
        return [job for jobs in self._jobs for job in jobs.all()]


def capture_deferred(*, database: str | None = None) -> CapturedJobs:
    """Make a context manager that captures the jobs that are deferred in its block.

    It captures jobs of `.defer()`, `.defer_many()`, `.enqueue()` of Django's tasks and `Job.objects.enqueue`, from any
    thread whose transaction is committed or is the test's. It leaves out jobs that were rolled back.

    database: the alias of the queue's database; default: all databases that hold queues.
    """
    return CapturedJobs(chosen_or_all(database))


MOST_JOBS_SHOWN = 20
"""Jobs in one message, at most."""

MOST_CHARACTERS_SHOWN = 300
"""Characters of the arguments of one job in a message, at most."""


def call(job: Job) -> str:
    """The call that made the job: `payments.jobs.send_receipt(payment_id=42)`."""
    shown = redacted(job.task, job.args, job.kwargs)
    positional = [
        repr(value) if name.startswith("[") else f"{name}={value!r}" for name, value in named(job.task, shown.args)
    ]
    keywords = [f"{name}={value!r}" for name, value in shown.kwargs.items()]
    arguments = ", ".join([*positional, *keywords])
    return f"{job.task}({shorten(arguments, MOST_CHARACTERS_SHOWN)})"


def line(job: Job) -> str:
    """The call, and the options with which the job was deferred."""
    delay = job.run_after - job.enqueued_at
    options = [f"queue_name={job.queue_name!r}", *([f"priority={job.priority}"] if job.priority else [])]
    if delay > timedelta(seconds=1):
        options.append(f"run_after={job.run_after.isoformat(sep=' ', timespec='seconds')}, in {delay}")
    return f"  {call(job)}  [{', '.join(options)}] {job.status}"


def lines(jobs: Sequence[Job], differs: Mapping[int, str] | None = None) -> list[str]:
    """A line for each of the first jobs, and one for the rest. differs: the names in which a job differs, by its id."""
    others = len(jobs) - MOST_JOBS_SHOWN
    notes = {id: f"  (other: {names})" for id, names in (differs or {}).items() if names}
    shown = [line(job) + notes.get(job.pk, "") for job in jobs[:MOST_JOBS_SHOWN]]
    return [*shown, *([f"  … and {others} more"] if others > 0 else [])]
