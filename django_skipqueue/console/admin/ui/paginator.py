"""The pages of a list of jobs."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from django.core.paginator import Paginator
from django.db.models import QuerySet

from ...counts import Count

if TYPE_CHECKING:
    from ....models import Job

    JobPaginator = Paginator[Job]
else:
    JobPaginator = Paginator


class CappedPaginator(JobPaginator):
    """Pages through the first `CAP` jobs of a list, so that no page skips more rows than that."""

    @cached_property
    def total(self) -> Count:
        return Count.of(cast("QuerySet[Job]", self.object_list))

    @property
    def count(self) -> int:  # Django caches it; here `total` does
        return self.total.shown


class IndexedPaginator(CappedPaginator):
    """Pages through jobs that an index finds, or that were found in a window."""

    @cached_property
    def total(self) -> Count:
        jobs: Any = self.object_list
        return Count.in_any_order(jobs) if isinstance(jobs, QuerySet) else super().total


class Found:
    """Jobs whose ids are known, in the order of the list. It is counted and cut like a query set, without a query."""

    def __init__(self, jobs: "QuerySet[Any]", ids: Sequence[int]) -> None:
        self._jobs = jobs
        self._ids = ids

    def __getitem__(self, part: slice) -> "Found":
        return Found(self._jobs, self._ids[part])

    def count(self) -> int:
        return len(self._ids)

    def all(self) -> "QuerySet[Any]":
        return self._jobs.filter(pk__in=self._ids)

    _clone = all
    """Django's list calls it for a list of one page."""
