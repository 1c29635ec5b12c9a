"""Deleting jobs by hand."""

from collections.abc import Collection

from django.db import transaction

from ..models import Dependency, Job, Status


def delete_jobs(ids: Collection[int]) -> set[int]:
    """Delete those of these jobs that do not run, with what they wait for, and return their ids.

    Locks, then deletes: a job that a worker claims in between is either locked, or running and left alone.
    """
    with transaction.atomic(using=Job.objects.all().db):
        jobs = Job.objects.filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
        deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
        Dependency.objects.using(jobs.db).filter(job_id__in=deleted).delete()
        Job.objects.filter(pk__in=deleted).delete()
    return deleted
