"""`Cause`: what failed attempts have in common."""

from typing import NamedTuple


class Cause(NamedTuple):
    """The task, the exception's class, and the function that raised it: the innermost one of the project."""

    task: str
    exception: str
    place: str
    """Empty if the attempt has left no traceback."""
