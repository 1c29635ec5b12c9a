"""What the page of a job shows of batches: the batch of the job, and the jobs that it waits for, as links."""

from typing import Any, NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...console.admin.ui.cells import badge
from ...models import FINISHED, Job, JobBatch, Status
from ...models.job import AbstractJob
from .states import unmet_needs

SHOWN = 5


class ShownNeed(NamedTuple):
    job_id: int
    is_gone: bool
    """Whether it has no page."""
    badge: SafeString


def of_job(job: AbstractJob) -> dict[str, Any]:
    needs = needs_of(job) if isinstance(job, Job) and job.status not in FINISHED else []
    return {"batch": batch_of(job), "needs": needs[:SHOWN], "has_more": len(needs) > SHOWN}


def batch_of(job: AbstractJob) -> Any:
    """The id and the name of its batch; `None` if it has none, or that was pruned."""
    batch_id = getattr(job, "batch_id", None)  # an archived job has none
    return batch_id and JobBatch.objects.filter(pk=batch_id).only("pk", "name").first()


def needs_of(job: Job) -> list[ShownNeed]:
    """The jobs that this one waits for, at most one more than `SHOWN`; empty if it waits for none any more."""
    return [
        ShownNeed(need.needs_job_id, need.is_gone, _badge(need.status)) for need in unmet_needs(job, limit=SHOWN + 1)
    ]


def _badge(status: str | None) -> SafeString:
    return badge(status, Status(status).label) if status else badge("discarded", gettext("deleted"))
