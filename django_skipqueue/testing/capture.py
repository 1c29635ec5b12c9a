"""`capture_deferred` collects the jobs that a block defers, and shows a line about each, with secrets masked."""

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
    """A list of the jobs that were inserted since the block began, in the order of their ids.

    In the block, each use of the list reads the jobs again. After the block, it has the jobs as they were at the end.
    """

    def __init__(self, aliases: Sequence[str]) -> None:
        self._jobs = [Job.objects.using(alias).order_by("pk") for alias in aliases]
        self._jobs_at_end: list[Job] | None = None

    @async_unsafe("capture_deferred() sends queries: in an async test, write `async with capture_deferred()`.")
    def __enter__(self) -> "CapturedJobs":
        # Remembers all ids and not just the highest, because fixtures may have any ids.
        self._jobs = [jobs.exclude(pk__in=list(jobs.values_list("pk", flat=True))) for jobs in self._jobs]
        self._jobs_at_end = None
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Keep the jobs as they are now, unless the block raised, because then the database may refuse queries."""
        self._jobs_at_end = self._read() if error is None else []

    async def __aenter__(self) -> "CapturedJobs":
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, *error: Any) -> None:
        await sync_to_async(self.__exit__)(*error)

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        return self._list()[index]

    def __len__(self) -> int:
        return len(self._list())

    def __repr__(self) -> str:
        """Return a line for each job, because the messages of failed assertions show this list."""
        jobs = self._list()
        return "\n".join([f"<{len(jobs)} deferred jobs>", *lines(jobs)])

    def _list(self) -> list[Job]:
        return self._read() if self._jobs_at_end is None else self._jobs_at_end

    def _read(self) -> list[Job]:
        return [job for jobs in self._jobs for job in jobs.all()]


def capture_deferred(*, database: str | None = None) -> CapturedJobs:
    """Make a context manager that collects the jobs that are deferred in its block.

    It collects the jobs of `.defer()`, `.defer_many()`, `Job.objects.enqueue` and Django's `Task.enqueue()`, from all
    threads, if they are in a transaction that is committed, or in the test's own. Jobs that were rolled back are left
    out.

    database: the alias of the queue's database; default: all databases that hold queues.
    """
    return CapturedJobs(chosen_or_all(database))


MOST_JOBS_SHOWN = 20
"""How many jobs one message lists at most."""

MOST_CHARACTERS_SHOWN = 300
"""How many characters of a job's arguments a message shows at most."""


def call(job: Job) -> str:
    """The job as the call of its task, such as `payments.jobs.send_receipt(payment_id=42)`."""
    shown = redacted(job.task, job.args, job.kwargs)
    positional = [
        repr(value) if name.startswith("[") else f"{name}={value!r}" for name, value in named(job.task, shown.args)
    ]
    keywords = [f"{name}={value!r}" for name, value in shown.kwargs.items()]
    arguments = ", ".join([*positional, *keywords])
    return f"{job.task}({shorten(arguments, MOST_CHARACTERS_SHOWN)})"


def line(job: Job) -> str:
    """The job as the call of its task, with the options with which it was deferred, and its status."""
    delay = job.run_after - job.enqueued_at
    options = [f"queue_name={job.queue_name!r}", *([f"priority={job.priority}"] if job.priority else [])]
    if delay > timedelta(seconds=1):
        options.append(f"run_after={job.run_after.isoformat(sep=' ', timespec='seconds')}, in {delay}")
    return f"  {call(job)}  [{', '.join(options)}] {job.status}"


def lines(jobs: Sequence[Job], differences: Mapping[int, str] | None = None) -> list[str]:
    """Return a line for each of the first jobs, and one line with the number of all further jobs.

    differences: by the id of a job, the names of the arguments and columns in which the job is not as expected.
    """
    further_jobs = len(jobs) - MOST_JOBS_SHOWN
    notes = {id: f"  (other: {names})" for id, names in (differences or {}).items() if names}
    shown_lines = [line(job) + notes.get(job.pk, "") for job in jobs[:MOST_JOBS_SHOWN]]
    return [*shown_lines, *([f"  … and {further_jobs} more"] if further_jobs > 0 else [])]
