"""The jobs that a job waits for: as links."""

from typing import NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...console.admin.ui.cells import badge
from ...models import Job, Status
from .states import unmet_needs

SHOWN = 5


class ShownNeed(NamedTuple):
    job_id: int
    is_gone: bool
    """Whether it has no page."""
    badge: SafeString


def needs_of(job: Job) -> list[ShownNeed]:
    """The jobs that this one waits for, at most one more than `SHOWN`; empty if it waits for none any more."""
    return [
        ShownNeed(need.needs_job_id, need.is_gone, _badge(need.status)) for need in unmet_needs(job, limit=SHOWN + 1)
    ]


def _badge(status: str | None) -> SafeString:
    return badge(status, Status(status).label) if status else badge("discarded", gettext("deleted"))
