"""The pages of a list of jobs."""

from functools import cached_property
from typing import TYPE_CHECKING, cast

from django.core.paginator import Paginator
from django.db.models import QuerySet

from ...operators.counts import Count

if TYPE_CHECKING:
    from ...models import Job

    JobPaginator = Paginator[Job]
else:
    JobPaginator = Paginator


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
