"""The list of jobs: in the order of an index, with a count that stops, and status tabs over it.

Invariant: opening the list, however it is filtered, reads a page from an index, or looks at `orders.LOOK` jobs at most.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext

from ..models import Job, Status
from .banner import Banner
from .counts import Count
from .filters import QueueFilter, StatusFilter, TaskFilter, TimeFilter
from .orders import LOOK, Indexed
from .search import Search


@dataclass(frozen=True)
class Tab:
    """A link to the jobs of one status, or of all."""

    status: str
    label: Any
    address: str
    is_selected: bool
    count: Count | None


class JobChangeList(ChangeList):
    """The job list as Django's admin shows it."""

    edge: tuple[Any, ...] | None = None
    """Where the part of the list ends that was looked at; `None`: all of it was."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        """The jobs that match, in order, out of those that are looked at."""
        jobs = super().get_queryset(request, exclude_parameters)
        self.edge = self.indexed.edge() if self._needs_a_look else None
        return jobs if self.edge is None else jobs.filter(self.indexed.order.up_to(self.edge))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Job]) -> list[Any]:
        """The order of the index, and no other: the columns cannot be sorted by."""
        return list(self.indexed.order.by())

    @property
    def indexed(self) -> Indexed:
        """The jobs that an index finds, of which the list shows those that match."""
        return Indexed.covering(self._chosen(StatusFilter), self._chosen(QueueFilter))

    @property
    def total(self) -> Count:
        """How many jobs match."""
        return self.paginator.total  # type: ignore[no-any-return]  # a CappedPaginator

    @property
    def shown(self) -> tuple[int, int]:
        """The places in the list of the first and the last job on this page."""
        before = (self.page_num - 1) * self.list_per_page if self.multi_page else 0
        return before + 1, before + len(self.result_list)

    @property
    def looked_at(self) -> str:
        """How many jobs were looked at, where that was not all."""
        return "" if self.edge is None else number_format(LOOK, force_grouping=True)

    @property
    def address_without_search(self) -> str:
        """The same list without the words that were searched for."""
        return self.get_query_string(remove=[SEARCH_VAR])

    @cached_property
    def tabs(self) -> list[Tab]:
        """One for each status; with counts unless something else narrows the list, of which they would say nothing."""
        is_narrowed = bool(self.query) or any(map(self._chosen, (QueueFilter, TaskFilter, TimeFilter)))
        chosen = self._chosen(StatusFilter)
        everything = Tab("", gettext("all"), self.get_query_string(remove=["status"]), chosen is None, None)
        return [everything] + [
            Tab(
                status.value,
                status.label,
                self.get_query_string({"status": status.value}),
                status == chosen,
                None if is_narrowed else Indexed(status.value).count(),
            )
            for status in Status
        ]

    @cached_property
    def banner(self) -> Banner | None:
        """Whether jobs wait for a worker that nobody has started."""
        return Banner.now()

    @property
    def _needs_a_look(self) -> bool:
        """Whether something is asked for that no index can find."""
        search = Search(self.query)
        time = self._filter(TimeFilter)
        return not search.names_an_id and (
            bool(search.words)
            or self._chosen(TaskFilter) is not None
            or self._chosen(QueueFilter) != self.indexed.queue_name
            or (time is not None and time.value() is not None and not time.is_indexed)
        )

    def _chosen(self, kind: type[Any]) -> str | None:
        chosen = self._filter(kind)
        return None if chosen is None else chosen.value()

    def _filter(self, kind: type[Any]) -> Any:
        return next((each for each in self.filter_specs if isinstance(each, kind)), None)
