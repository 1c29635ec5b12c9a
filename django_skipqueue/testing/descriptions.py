"""One line about a deferred job, for the messages of failed assertions. Secret arguments are masked."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ..console.arguments import named, redacted
from ..models import Job

MOST = 20
"""Most jobs in one message."""

WIDEST = 300
"""Most characters of the arguments of one job in a message."""


def call(job: Job) -> str:
    """The call that made the job: `payments.jobs.send_receipt(payment_id=42)`."""
    shown = redacted(job.task, job.args, job.kwargs)
    positional = [
        repr(value) if name.startswith("[") else f"{name}={value!r}" for name, value in named(job.task, shown.args)
    ]
    keywords = [f"{name}={value!r}" for name, value in shown.kwargs.items()]
    arguments = ", ".join([*positional, *keywords])
    return f"{job.task}({arguments if len(arguments) <= WIDEST else arguments[: WIDEST - 1] + '…'})"


def line(job: Job) -> str:
    """The call, and the options with which it was deferred."""
    delay = job.run_after - job.enqueued_at
    options = [f"queue_name={job.queue_name!r}", *([f"priority={job.priority}"] if job.priority else [])]
    if delay > timedelta(seconds=1):
        options.append(f"run_after={job.run_after.isoformat(sep=' ', timespec='seconds')}, in {delay}")
    return f"  {call(job)}  [{', '.join(options)}] {job.status}"


def lines(jobs: Sequence[Job], differs: Mapping[int, str] | None = None) -> list[str]:
    """A line for each of the first jobs, and one for the others. `differs`: in which names a job differs, by its id."""
    others = len(jobs) - MOST
    notes = {id: f"  (other: {names})" for id, names in (differs or {}).items() if names}
    shown = [line(job) + notes.get(job.pk, "") for job in jobs[:MOST]]
    return [*shown, *([f"  … and {others} more"] if others > 0 else [])]
