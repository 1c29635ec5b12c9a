"""Which job holds the unique key of another, so that an operator's verb changed nothing."""

from django.utils.translation import gettext

from ..models import Job
from ..models.expressions import HOLDS_KEY
from ..operators.arguments import redacted
from ..values.codec import shorten

TEXT_LIMIT = 200
"""Characters of a key in a message."""


def why_its_key_is_taken(job_id: int) -> str:
    """The message that names the other job; empty if none holds the key of this one. Index: unique."""
    job = Job.objects.filter(pk=job_id, unique_key__isnull=False).first()
    if job is None:
        return ""
    for holder in Job.objects.filter(HOLDS_KEY, unique_key=job.unique_key).exclude(pk=job.pk):
        return key_is_held(job, holder)
    return ""


def key_is_held(job: Job, holder: Job) -> str:
    """The message for a job whose unique key another job holds: secrets of either may be in the key."""
    key = redacted(holder.task, holder.args, holder.kwargs).text(holder.unique_key or "")
    return gettext("Nothing was done: the unique key “%(key)s” is held by job %(id)s, which is %(status)s.") % {
        "key": shorten(redacted(job.task, job.args, job.kwargs).text(key), TEXT_LIMIT),
        "id": holder.shown_id,
        "status": holder.get_status_display(),
    }
