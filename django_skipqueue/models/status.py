"""Where a job is in its life. The chart is in the documentation, under "Statuses"."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Status(models.TextChoices):
    """The seven statuses."""

    SCHEDULED = "scheduled", _("scheduled")
    BLOCKED = "blocked", _("blocked")
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    DISCARDED = "discarded", _("discarded")

    @property
    def is_finished(self) -> bool:
        """Whether nothing more happens to the job unless somebody retries it."""
        return self in FINISHED


FINISHED = (Status.COMPLETED, Status.FAILED, Status.DISCARDED)
"""Nothing more happens to such a job, unless somebody retries it."""

UNFINISHED = tuple(status for status in Status if status not in FINISHED)
"""The others."""

WAITING = tuple(status for status in UNFINISHED if status != Status.RUNNING)
"""Neither finished nor running."""
