"""How many scheduled jobs wait for their first attempt, and how many for a retry."""

from dataclasses import dataclass

from django.db import models
from django.db.models import Q

from ..models import Status
from . import counts
from .counts import Count
from .list_order import Indexed

RETRIES = models.Count("attempts", filter=Q(attempts__gt=0))


@dataclass(frozen=True)
class ScheduledCounts:
    """The numbers of scheduled jobs that wait for their first attempt, and of those that wait for a retry.

    No index separates the two. So only the jobs that are due next are counted, at most `counts.CAP`. Retries are
    mostly among them, because they are due soon.
    """

    first: Count
    retrying: Count

    @classmethod
    def now(cls) -> "ScheduledCounts":
        due_next = Indexed(Status.SCHEDULED).jobs().values("attempts")[: counts.CAP + 1]
        found = due_next.aggregate(jobs=models.Count("attempts"), retrying=RETRIES)
        is_least = found["jobs"] > counts.CAP
        return cls(Count(found["jobs"] - found["retrying"], is_least), Count(found["retrying"], is_least))

    @property
    def are_mostly_retries(self) -> bool:
        """Whether there are so many retries that the other scheduled jobs are hard to find among them."""
        return self.retrying.is_capped and self.retrying.found > self.first.found
