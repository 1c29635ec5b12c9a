"""Our own tasks, in the module where our worker looks for them."""

from django_skipqueue import job

from . import marks


@job
def noop(number: int) -> None:
    """Does nothing."""


@job
def mark(number: int) -> None:
    """Leaves a mark."""
    marks.leave(number)
