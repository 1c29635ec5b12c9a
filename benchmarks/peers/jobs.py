"""Our own tasks, in the module where our worker looks for them."""

from django_skipqueue import job, limit

from . import marks


@job
def noop(number: int) -> None:
    """Does nothing."""


@job(concurrency=limit(2, by="key"))
def limited(key: int) -> None:
    """Does nothing, twice at once for each key."""


@job
def mark(number: int) -> None:
    """Leaves a mark."""
    marks.leave(number)
