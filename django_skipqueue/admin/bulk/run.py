"""Applies a verb to all jobs of a list, in a worker.

Invariant: each batch and the progress are written in one transaction. After a crash the job goes on behind the last
batch, so no job is changed twice, and none is left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.http import HttpRequest

from ...conf import using_database
from ...exceptions import LeaseLost
from ...models import Job
from ...tasks.context import JobContext
from ...values.outcomes import Discard
from ..verbs import log, many_jobs
from ..verbs.many_jobs import Tally
from .bulk_action import BulkAction
from .progress import Progress
from .walk import Walk

MOST_OPERATIONS = 50
"""The operations that the row of a job keeps, the newest ones."""


def run(context: JobContext, action: Mapping[str, Any]) -> dict[str, int]:
    """Go on where the last attempt ended, to the end of the list. Returns how many jobs were changed and skipped.

    All of it is in the database of this job: the jobs of the list, and their verbs.
    """
    with using_database(context.database):
        return _run(context, action)


def _run(context: JobContext, action: Mapping[str, Any]) -> dict[str, int]:
    bulk = BulkAction(**action)
    request = _request(bulk, context.job)
    walk = Walk(bulk, context.job, request, bulk.model_admin().get_changelist_instance(request))
    progress = Progress.of(context.job) or _begin(walk)
    number = progress.counted or bulk.number
    try:
        for window in walk.windows(progress.edges):
            progress = progress.within(window)
            for ids in walk.within(window).batches(after=progress.after, newest=progress.newest):
                with transaction.atomic(using=context.database):
                    further = progress.plus(ids, bulk.verb.change(ids, bulk.instruction))
                    _save(further, context)
                progress = further
                context.progress(progress.share_of(number), progress.text(number))
    finally:  # what is done stays done, even if somebody has stopped the job
        if progress.changed:
            message = many_jobs.message_of(bulk.texts, Tally(progress.changed, progress.skipped))
            log.record_all(request, bulk.verb, message, bulk.instruction)
    return {"changed": progress.changed, "skipped": progress.skipped}


def _request(bulk: BulkAction, job: Job) -> HttpRequest:
    """The request of the user.

    Raises `Discard` if the admin has not asked for this, the user may no longer apply the verb, or another retried it.
    """
    if not bulk.is_genuine:
        raise Discard(
            "The admin has not signed these arguments. Have web servers and workers the same SECRET_KEY, or one as a "
            "fallback of the other?"
        )
    operations = job.operations or []
    if len(operations) >= MOST_OPERATIONS:  # older ones are gone, and a retry by somebody else may be among them
        raise Discard("The history of the job is full, so nobody can tell who has retried it.")
    for each in operations:
        if each["verb"] == "retry" and each["by"] not in ("", bulk.user):
            raise Discard(f"The job acts for {bulk.user}, but {each['by']} has retried it.")
    try:
        request = bulk.request()
    except ObjectDoesNotExist:
        raise Discard(f"The user {bulk.user} was deleted.") from None
    model_admin: Any = bulk.model_admin()
    if not model_admin.admin_site.has_permission(request) or not model_admin.may(request, bulk.verb):
        raise Discard(f"{bulk.user} may not {bulk.verb.name} jobs.")
    return request


def _begin(walk: Walk) -> Progress:
    """Count the jobs, if the question could not say how many they are. Returns the progress before the first."""
    progress = Progress.at_the_start(walk.front())
    return replace(progress, counted=walk.count(progress.newest)) if walk.bulk.is_least else progress


def _save(progress: Progress, context: JobContext) -> None:
    if not progress.save(context.job_id, context.lease):
        raise LeaseLost(f"Job {context.job_id} was cancelled, or taken over by another worker.")
