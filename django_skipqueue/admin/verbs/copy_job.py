"""Copying finished jobs: the same task, arguments, queue, priority, attempts, timeout, retention and unique key."""

import json
from collections.abc import Collection
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from ...models import FINISHED, Job
from ...values.records import EncodedCall, JobSpec
from .verb import Changed


def copy_jobs(ids: Collection[int]) -> Changed:
    """Enqueue a copy of each that is finished and whose unique key is free; returns the ids of jobs and copies.

    The JSON texts of the arguments are copied as they are. The unique key is copied too, so that the copy does not run
    beside another job of this key.
    """
    texts = {f"{name}_text": Cast(name, TextField()) for name in ("args", "kwargs")}
    copied = {}
    jobs: Any = Job.objects.filter(pk__in=ids, status__in=FINISHED).annotate(**texts)
    for job in jobs:
        copy = Job.objects.insert(_spec_of(job), EncodedCall(job.args_text, job.kwargs_text, job.unique_key))
        if copy.created:
            copied[job.pk] = copy.pk
    return copied


def _spec_of(job: Job) -> JobSpec:
    """Everything that is set at an insert, except for the due time."""
    columns = {name: getattr(job, name) for name in JobSpec._fields if name != "run_after"}
    columns["retention"] = job.retention and json.dumps(job.retention)
    columns["metadata"] = json.dumps(job.metadata)
    return JobSpec(**columns)
