"""The tasks of the package itself. Workers import this module as they import the `jobs` of every app."""

from typing import Any

from ..jobs.context import JobContext
from ..jobs.decorator import job


@job(name="django_skipqueue.apply_to_all", takes_context=True)
def apply_to_all(context: JobContext, /, **action: Any) -> dict[str, int]:
    """Apply a verb to all jobs that match a list of the admin. `console.admin.bulk` defers it, and has the code."""
    from .admin.bulk import run  # workers of a project without the admin import this module too

    return run(context, action)
