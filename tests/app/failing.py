"""Makes jobs whose last attempt has failed with a given cause."""

from typing import Any

from django_skipqueue.models import Job
from django_skipqueue.values.records import Cause

from .rows import make_job

UNAVAILABLE = Cause("shop.jobs.capture", "psp.errors.Unavailable", "shop.gateway.Client.post")
BAD_VALUE = Cause("shop.jobs.send", "builtins.ValueError", "shop.jobs.send")


def make_failing(cause: Cause, status: str = "failed", **fields: Any) -> Job:
    """Make a job whose last attempt failed with this cause."""
    exception_name = cause.exception.rpartition(".")[2]
    entry = {"attempt": 1, "exception": cause.exception, "place": cause.place, "message": "no", "traceback": ""}
    values: dict[str, Any] = {"attempts": 1, "errors": [entry], "last_error": f"{exception_name}: no"}
    return make_job(status, task=cause.task, **(values | fields))
