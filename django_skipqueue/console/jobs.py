"""The package's own task. Workers import this module like the module `jobs` of every app."""

from typing import Any

from ..jobs.context import JobContext
from ..jobs.decorator import job


@job(name="django_skipqueue.apply_to_all", takes_context=True)
def apply_to_all(context: JobContext, /, **action: Any) -> dict[str, int]:
    """Apply a verb to all jobs that match a list in the admin: see `console.admin.bulk`, which defers this."""
    from .admin.bulk import run  # not at the top, because projects without the admin import this module too

    return run(context, action)
