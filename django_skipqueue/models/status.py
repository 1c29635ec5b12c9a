"""The statuses of a job. The documentation has a chart of them, under "Statuses"."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..values import statuses

if TYPE_CHECKING:
    from .job import Job

    JobQuerySet = models.QuerySet[Job]
else:
    JobQuerySet = object


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
        """Whether a job with this status never changes again, unless somebody retries it."""
        return self in FINISHED


FINISHED = tuple(map(Status, statuses.FINISHED_STATUSES))
"""A job with one of these statuses never changes again, unless somebody retries it."""

UNFINISHED = tuple(map(Status, statuses.UNFINISHED_STATUSES))
"""The statuses of jobs that are not finished."""

WAITING = tuple(status for status in UNFINISHED if status != Status.RUNNING)
"""The statuses that are neither finished nor running."""


class StatusFilters(JobQuerySet):
    """The filters of `Job.objects` by status."""

    def scheduled(self) -> Self:
        """Jobs that are not due yet."""
        return self.filter(status="scheduled")

    def blocked(self) -> Self:
        """Jobs that wait for a limit or for another job."""
        return self.filter(status="blocked")

    def queued(self) -> Self:
        """Jobs that a worker may claim."""
        return self.filter(status="queued")

    def running(self) -> Self:
        """Jobs that a worker has claimed."""
        return self.filter(status="running")

    def completed(self) -> Self:
        """Jobs whose task returned."""
        return self.filter(status="completed")

    def failed(self) -> Self:
        """Jobs whose last attempt failed."""
        return self.filter(status="failed")

    def discarded(self) -> Self:
        """Jobs that were finished on purpose, without success."""
        return self.filter(status="discarded")

    def unfinished(self) -> Self:
        """Jobs that are not finished. There is one condition per status, because `IN` could not use partial indexes."""
        return self.filter(reduce(or_, [Q(status=status) for status in UNFINISHED]))
