"""Our own tasks, in the module where our worker looks for them."""

from django_skipqueue import job, limit

from . import marks
from .work import work


@job
def noop(number: int) -> None:
    """The task of a drain."""
    work(number)


@job(concurrency=limit(2, by="key"))
def limited(key: int) -> None:
    """Does nothing, twice at once for each key."""


@job
def mark(number: int) -> None:
    """Leaves a mark."""
    marks.leave(number)
