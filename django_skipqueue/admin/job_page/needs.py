"""The jobs that a job waits for: in a sentence, and as links."""

from typing import NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...models import Job, Status
from ...store import Store
from ..ui.cells import badge

SHOWN = 5


class ShownNeed(NamedTuple):
    """A job that another one waits for."""

    job_id: int
    is_gone: bool
    """Whether it has no page."""
    badge: SafeString


def needs_of(job: Job) -> list[ShownNeed]:
    """The jobs that this one waits for, at most one more than `SHOWN`; empty if it waits for none any more."""
    if not job.awaits_jobs:
        return []
    unmet = [need for need in Store(job._state.db or "default").needs([job.pk]) if not need.is_met]
    return [ShownNeed(need.needs_job_id, need.is_gone, _badge(need.status)) for need in unmet[: SHOWN + 1]]


def _badge(status: str | None) -> SafeString:
    return badge(status, Status(status).label) if status else badge("discarded", gettext("deleted"))


def why_it_waits_for_jobs(job: Job) -> str:
    """Which jobs it needs, and whether one of them has not completed; empty if it waits for no job."""
    if not job.awaits_jobs:
        return ""
    unmet = [need for need in Store(job._state.db or "default").needs([job.pk]) if not need.is_met]
    if not unmet:
        return gettext("The jobs that it needs are finished: it goes into its queue within a second or two.")
    ended = [need for need in unmet if need.status in (None, "failed", "discarded")]
    if ended:
        return gettext("It needs job %(job)s, which has not completed: retry that one, or discard this one.") % {
            "job": ended[0].needs_job_id
        }
    shown = ", ".join(str(need.needs_job_id) for need in unmet[:SHOWN])
    return ngettext("It waits for job %(jobs)s.", "It waits for %(number)s jobs: %(jobs)s.", len(unmet)) % {
        "number": len(unmet),
        "jobs": shown if len(unmet) <= SHOWN else f"{shown}, …",
    }
