"""Copying finished jobs: the same task, arguments, queue, priority, attempts, timeout, retention, unique key and limit.

Invariant: a job that acts for a user is not copied, because the copy would act for that user as well.
"""

import json
from collections.abc import Collection
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext

from ...columns import check_columns
from ...exceptions import InvalidOption
from ...models import FINISHED, ArchivedJob, Job
from ...values.codec import UNREADABLE
from ...values.records import EncodedCall, JobSpec
from . import key_database
from .verb import Changed

BULK_TASK = "django_skipqueue.apply_to_all"
"""Its jobs change other jobs, with the permissions of the user who asked for that."""

TEXTS = {f"{name}_text": Cast(name, TextField()) for name in ("args", "kwargs")}


def copy_jobs(ids: Collection[int]) -> Changed:
    """Enqueue a copy of each that is finished and whose unique key is free; returns the ids of jobs and copies.

    The JSON texts of the arguments are copied as they are. The unique key is copied too, so that the copy does not run
    beside another job of this key.
    """
    copied = {}
    for job in Job.objects.filter(pk__in=ids, status__in=FINISHED).annotate(**TEXTS):
        copy = None if why_not_copied(job) or why_held_elsewhere(job) else _insert_copy(job)
        if copy is not None and copy.created:
            copied[job.pk] = copy.pk
    return copied


def why_not_copied(job: Any) -> str:
    """The message for a job that must not be copied; empty for all others."""
    if job.task == BULK_TASK:
        return gettext("Job %(id)s acts for the user who asked for it, so it cannot be run again.") % {"id": job.pk}
    if UNREADABLE in (job.args, job.kwargs, job.metadata, job.retention):
        return gettext("Job %(id)s has JSON that cannot be read, so it cannot be run again.") % {"id": job.pk}
    try:
        check_columns(spec_of(job)._asdict())
    except InvalidOption as error:  # somebody has written the row by hand
        return gettext("Job %(id)s cannot be run again: %(error)s") % {"id": job.pk, "error": error}
    return ""


def why_held_elsewhere(job: Any) -> str:
    """The message for a job whose unique key is held by one in another database, or cannot be asked for there."""
    return key_database.why_held_elsewhere(job, spec_of(job), _call(job, json.dumps(job.args), json.dumps(job.kwargs)))


def copy_archived_job(job: ArchivedJob) -> Job:
    """Enqueue a copy of a job in the archive. Returns it, or the job that holds its unique key: not `created`."""
    return _insert_copy(ArchivedJob.objects.annotate(**TEXTS).get(pk=job.pk, finished_at=job.finished_at))


def _insert_copy(job: Any) -> Job:
    return Job.objects.insert(spec_of(job), _call(job, job.args_text, job.kwargs_text))


def _call(job: Any, args: str, kwargs: str) -> EncodedCall:
    return EncodedCall(args, kwargs, **{name: getattr(job, name) for name in EncodedCall._fields[2:]})


def spec_of(job: Any) -> JobSpec:
    """Everything that is set at an insert, except for the due time and the batch.

    A batch ends when its jobs are finished, and has called back then: a copy made later is none of them.
    """
    own = ("run_after", "batch_id")
    columns: dict[str, Any] = {
        name: getattr(job, name) for name in JobSpec._fields if name not in own and hasattr(job, name)
    }
    columns["retention"] = job.retention and json.dumps(job.retention)
    columns["metadata"] = json.dumps(job.metadata)
    return JobSpec(**columns)
