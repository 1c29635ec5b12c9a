"""The tasks of our queue. Our workers find them because this module is named `jobs`."""

from django_skipqueue import JobContext, job, limit

from . import marks
from .work import in_steps, work


@job
def noop(number: int) -> None:
    """Do the work of a drain."""
    work(number)


@job(concurrency=limit(2, by="key"))
def limited(key: int) -> None:
    """Does nothing. At most two jobs of a key run at once."""


@job
def mark(number: int) -> None:
    """Write a line with the number and the time of the run."""
    marks.leave(number)


@job(takes_context=True)
def workflow(context: JobContext, number: int, steps: int) -> None:
    """Record steps that do nothing."""
    in_steps(lambda each: context.step(f"step {each}", int, each), number, steps)
