"""The jobs that a job waits for: in a sentence, and as links."""

from typing import NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ...conf import settings
from ...models import Job, Status
from ...store import Store
from ...store.dependencies import UnmetNeed
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
    return [ShownNeed(need.needs_job_id, need.is_gone, _badge(need.status)) for need in _unmet(job)]


def why_it_waits_for_jobs(job: Job) -> str:
    """Which jobs it needs, and whether one of them has not completed; empty if it waits for no job."""
    if not job.awaits_jobs:
        return ""
    unmet = _unmet(job)
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
    shown = ", ".join(str(need.needs_job_id) for need in unmet[:SHOWN])
    return ngettext("It waits for job %(jobs)s.", "It waits for %(number)s jobs: %(jobs)s.", number) % {
        "number": number,
        "jobs": shown if number <= SHOWN else f"{shown}, …",
    }


def _unmet(job: Job) -> list[UnmetNeed]:
    store = Store(job._state.db or settings.database)
    return store.unmet_needs(job.pk, limit=SHOWN + 1) if job.awaits_jobs else []


def _badge(status: str | None) -> SafeString:
    return badge(status, Status(status).label) if status else badge("discarded", gettext("deleted"))
