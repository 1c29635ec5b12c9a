"""Copy finished jobs, to run them again: `run_again()` of a job and of a query set.

A copy has the task, arguments, queue, priority, attempts, timeout, retention, unique key and limit of its original.
A job that acts with the permissions of a user is not copied, because the copy would have these permissions as well.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext

from ..exceptions import InvalidOption
from ..queue.fragments import CALL_COLUMNS, CALL_KEYS, COPIED_COLUMNS
from ..queue.store import Store
from ..values.bounds import check_columns
from ..values.codec import UNREADABLE
from ..values.records import EncodedCall, JobSpec
from .status import FINISHED

if TYPE_CHECKING:
    from .job import Job

BULK_TASK = "django_skipqueue.apply_to_all"
"""A task whose jobs change other jobs, with the permissions of the user who asked for the change."""

ARGUMENT_TEXTS = {f"{name}_text": Cast(name, TextField()) for name in ("args", "kwargs")}


def copy_jobs(jobs: "QuerySet[Job]", *, by: str = "", reason: str = "") -> dict[int, int]:
    """Enqueue a copy of each job that is finished and whose unique key is free.

    Returns the id of each copy, by the id of its original. The JSON of the arguments is copied without decoding it. The
    unique key is copied too, so that the copy does not run at the same time as another job with this key.
    """
    store, copies, jobs_by_spec = Store(jobs.db), dict[int, int](), dict[str, list[Any]]()
    with transaction.atomic(using=store.alias):
        for job in jobs.filter(status__in=FINISHED).annotate(**ARGUMENT_TEXTS).order_by("pk"):
            if not copy_refusal(job):
                further_columns = _column_values(job, (name for columns in CALL_KEYS.values() for name in columns))
                spec_text = repr((spec_of(job), further_columns))  # a spec has a dict, so it cannot be a key itself
                jobs_by_spec.setdefault(spec_text, []).append(job)
        for originals in jobs_by_spec.values():  # one statement for all jobs with equal specs
            calls = [call_of(job, job.args_text, job.kwargs_text) for job in originals]
            deferred = store.enqueue_many(spec_of(originals[0]), calls)
            results = zip(originals, deferred, deferred.outcomes, strict=True)
            copies |= {job.pk: copy_id for job, copy_id, outcome in results if outcome == "created"}
        if copies:
            store.note_copies(copies, by=by, reason=reason)
    return copies


def copy_refusal(job: Any) -> str:
    """A message why the job must not be copied; empty if it may be copied."""
    if job.task == BULK_TASK:
        return gettext("Job %(id)s acts for the user who asked for it, so it cannot be run again.") % {"id": job.pk}
    if UNREADABLE in (job.args, job.kwargs, job.metadata, job.retention):
        return gettext("Job %(id)s has JSON that cannot be read, so it cannot be run again.") % {"id": job.pk}
    try:
        check_columns(spec_of(job)._asdict())
    except InvalidOption as error:  # somebody has changed the row by hand
        return gettext("Job %(id)s cannot be run again: %(error)s") % {"id": job.pk, "error": error}
    return ""


def call_of(job: Any, args: str, kwargs: str) -> EncodedCall:
    """The call for a copy of the job: its arguments as JSON, and the columns of parts that depend on the arguments."""
    return EncodedCall(args, kwargs, _column_values(job, CALL_COLUMNS))


def spec_of(job: Any) -> JobSpec:
    """The spec for a copy of the job: the columns that an INSERT sets, except for the due time and the batch.

    The batch of a finished job may have ended and run its callbacks, so the copy does not belong to it.
    """
    columns: dict[str, Any] = {
        name: getattr(job, name) for name in JobSpec._fields if name != "run_after" and hasattr(job, name)
    }
    columns["columns"] = _column_values(job, COPIED_COLUMNS)
    columns["retention"] = job.retention and json.dumps(job.retention)
    columns["metadata"] = json.dumps(job.metadata)
    return JobSpec(**columns)


def _column_values(job: Any, names: Iterable[str]) -> dict[str, Any]:
    """The job's values in these columns of parts, without columns that are `None`."""
    return {name: value for name in names if (value := getattr(job, name)) is not None}
