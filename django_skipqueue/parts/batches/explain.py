"""Which jobs a blocked job waits for."""

from datetime import datetime

from django.utils.translation import gettext, ngettext

from ...conf import settings
from ...models import Job
from ...queue.store import Store
from .dependencies import UnmetNeed

NAMED = 5
"""The maximum of jobs that the sentence names."""


def why_it_waits_for_jobs(job: Job, _now: datetime) -> str:
    """Which jobs it needs, and whether one of them has not completed; empty if it waits for no job."""
    if not job.awaits_jobs:
        return ""
    unmet = unmet_needs(job, limit=NAMED)
    if not unmet:
        return gettext("The jobs that it needs are finished: it goes into its queue within a second or two.")
    first, number = unmet[0], unmet[0].number
    if first.is_stuck and first.is_gone:
        return gettext(
            "It needs job %(job)s, which was deleted, or pruned, before it had completed: it waits for ever. "
            "Discard it."
        ) % {"job": first.needs_job_id}
    if first.is_stuck:
        return gettext("It needs job %(job)s, which has not completed: retry that one, or discard this one.") % {
            "job": first.needs_job_id
        }
    shown = ", ".join(str(need.needs_job_id) for need in unmet)
    return ngettext("It waits for job %(jobs)s.", "It waits for %(number)s jobs: %(jobs)s.", number) % {
        "number": number,
        "jobs": shown if number <= NAMED else f"{shown}, …",
    }


def unmet_needs(job: Job, *, limit: int) -> list[UnmetNeed]:
    """Some of the jobs that it waits for still, first those that have not completed; none if it waits for no job."""
    store = Store(job._state.db or settings.database)
    return store.unmet_needs(job.pk, limit=limit) if job.awaits_jobs else []
