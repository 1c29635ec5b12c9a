"""`Job.objects`: the verbs for jobs, and the filters named after their statuses."""

from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from ..conf import settings
from .enqueue import Enqueueing
from .maintain import BATCH, Maintaining
from .operate import Operating
from .settle import Settling

if TYPE_CHECKING:
    from ..models import Job  # noqa: F401 (ruff does not see it in a subscript)

__all__ = ["BATCH", "JobManager", "JobQuerySet"]


class JobQuerySet(Enqueueing, Settling, Maintaining, Operating, models.QuerySet["Job"]):
    """Filters named after the statuses, and the verbs; a verb acts on the whole queue, not on what was filtered."""

    def scheduled(self) -> "JobQuerySet":
        """Jobs that are not due yet."""
        return self.filter(status="scheduled")

    def queued(self) -> "JobQuerySet":
        """Jobs that a worker may claim."""
        return self.filter(status="queued")

    def running(self) -> "JobQuerySet":
        """Jobs that a worker has claimed."""
        return self.filter(status="running")

    def completed(self) -> "JobQuerySet":
        """Jobs whose task returned."""
        return self.filter(status="completed")

    def failed(self) -> "JobQuerySet":
        """Jobs whose last attempt failed."""
        return self.filter(status="failed")

    def discarded(self) -> "JobQuerySet":
        """Jobs that were given up on purpose."""
        return self.filter(status="discarded")

    def alive(self) -> "JobQuerySet":
        """Jobs that are not finished. One status at a time, each by its partial index, which `IN` could not use."""
        return self.filter(Q(status="scheduled") | Q(status="queued") | Q(status="running"))


_Verbs = models.Manager.from_queryset(JobQuerySet)


class JobManager(_Verbs["Job"]):
    """`Job.objects`: works on the database that `SKIPQUEUE["DATABASE"]` names, whatever the project's routers say."""

    def get_queryset(self) -> JobQuerySet:
        """All jobs, in the queue's database."""
        return JobQuerySet(self.model, using=self._db or settings.database)
