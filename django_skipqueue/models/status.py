"""The statuses of a job. The documentation has a chart of them, under "Statuses"."""

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
        """Whether the job never changes again, unless somebody retries it."""
        return self in FINISHED


FINISHED = (Status.COMPLETED, Status.FAILED, Status.DISCARDED)
"""A job in one of these never changes again, unless somebody retries it."""

UNFINISHED = tuple(status for status in Status if status not in FINISHED)
"""All statuses except the finished ones."""

WAITING = tuple(status for status in UNFINISHED if status != Status.RUNNING)
"""The statuses that are neither finished nor running."""
