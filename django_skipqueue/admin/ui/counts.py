"""Counts that stop: a page needs no exact number of a million jobs, and an exact count reads all of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext

if TYPE_CHECKING:
    from ...models import Job

    JobPaginator = Paginator[Job]
else:
    JobPaginator = Paginator

CAP = 10_000


def grouped(number: int) -> str:
    """The number with separators between its thousands."""
    return number_format(number, force_grouping=True)


@dataclass(frozen=True)
class Count:
    """A number that is exact up to `CAP`, and stands for "more" above it."""

    found: int
    is_least: bool = False
    """Whether there may be more, though fewer than `CAP` were found."""

    @classmethod
    def of(cls, jobs: "QuerySet[Any]") -> "Count":
        """Count `jobs`, in their order, as far as the cap."""
        return cls(jobs[: CAP + 1].count())

    @property
    def is_capped(self) -> bool:
        """Whether there are more than `CAP`, or may be more than were found."""
        return self.is_least or self.found > CAP

    @property
    def shown(self) -> int:
        """The number of jobs that can be paged through: at most the cap."""
        return min(self.found, CAP)

    def __str__(self) -> str:
        return f"{grouped(self.shown)}+" if self.is_capped else grouped(self.shown)

    @property
    def in_words(self) -> str:
        """The number within a sentence."""
        number = grouped(self.shown)
        return gettext("more than %(number)s") % {"number": number} if self.is_capped else number


class CappedPaginator(JobPaginator):
    """Pages through the first `CAP` jobs of a list, so that no page skips more rows than that."""

    @cached_property
    def total(self) -> Count:
        """The number of jobs in the list."""
        return Count.of(cast("QuerySet[Job]", self.object_list))

    @property
    def count(self) -> int:  # Django caches it; here `total` does
        """The number of jobs that can be paged through."""
        return self.total.shown
