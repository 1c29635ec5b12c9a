"""The tasks of our queue. Our workers find them because this module is named `jobs`."""

from django_skipqueue import job, limit

from . import marks
from .work import work


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
