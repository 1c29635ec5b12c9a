"""The job list: its order, its filters, its tabs with counts, and its pages.

However the list is filtered, opening it only reads one page from an index, or searches one window of the list. A window
is a part of the list with a limited number of jobs.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from django.contrib.admin.views.main import SEARCH_VAR
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext

from ....conf import settings
from ....models import Job, Status
from ... import counts
from ...counts import Count
from ...job_states import RETRYING, STATES, Indexed, ScheduledCounts, is_in
from ...periods import Moment, Period
from ...search import FoundByIndex, Search, SearchWindow, is_id
from ..ui.views import OwnChangeList
from .filters import (
    TIME_PRESETS,
    CauseFilter,
    FoundFilter,
    GroupFilter,
    KeyFilter,
    PeriodFilter,
    QueueFilter,
    RunsFilter,
    StateFilter,
    TaskFilter,
    TimeFilter,
    longer_than,
)

if TYPE_CHECKING:
    JobPaginator = Paginator[Job]
else:
    JobPaginator = Paginator

WINDOW_VAR = "look"
"""The URL parameter with the number of the window that is searched."""

HOUR = timedelta(hours=1)

NARROWING = (CauseFilter, KeyFilter, QueueFilter, RunsFilter, TaskFilter, TimeFilter)
"""Filters by columns that are not in the index by group. A group is, for example, the jobs of one batch."""


class CappedPaginator(JobPaginator):
    """Pages through at most the first `MOST_JOBS_COUNTED` jobs, so that no page has to skip more rows than that."""

    @cached_property
    def total(self) -> Count:
        return Count.of(cast("QuerySet[Job]", self.object_list))

    @property
    def count(self) -> int:  # Django caches the count; here, `total` is cached
        return self.total.shown


class IndexedPaginator(CappedPaginator):
    """Pages through jobs that an index finds, or that a search found in a window."""

    @cached_property
    def total(self) -> Count:
        jobs: Any = self.object_list
        return Count.in_any_order(jobs) if isinstance(jobs, QuerySet) else super().total


class FoundJobs:
    """Jobs with known ids, in the list's order. Like a query set, it can be counted and sliced, but needs no query."""

    def __init__(self, jobs: "QuerySet[Any]", ids: Sequence[int]) -> None:
        self._jobs = jobs
        self._ids = ids

    def __getitem__(self, part: slice) -> "FoundJobs":
        return FoundJobs(self._jobs, self._ids[part])

    def count(self) -> int:
        return len(self._ids)

    def all(self) -> "QuerySet[Any]":
        return self._jobs.filter(pk__in=self._ids)

    _clone = all
    """Django's change list calls this method if the list has a single page."""


@dataclass(frozen=True)
class Tab:
    state: str
    label: Any
    address: str
    is_selected: bool
    count: Count | None


class JobChangeList(OwnChangeList):
    window: SearchWindow | None = None
    """The window of the list that is searched; `None` if an index finds all matching jobs."""

    _found: FoundJobs | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        number = request.GET.get(WINDOW_VAR, "")
        self.window_number = max(int(number), 1) if is_id(number) else 1
        super().__init__(request, *args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return {name: value for name, value in super().get_filters_params(params).items() if name != WINDOW_VAR}

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        jobs = self._listed(request, exclude_parameters)
        self._filtered = jobs
        if self._needs_a_window:
            self.window = SearchWindow.at(self.indexed, self.window_number)
        elif self.indexed.is_by_id:  # so that the jobs are counted in id order
            self.window = SearchWindow(self.indexed, 1, None, None)
        return self._found_among(jobs, request)

    def expected(self) -> int:
        """Estimate how many jobs of the whole list match; return 0 if that is unknown.

        The estimate uses the database's statistics about statuses, queues, tasks and times. There are no statistics
        about the words of a text search.
        """
        return 0 if Search(self.query).words else counts.expected(self._filtered)

    def jobs_within(self, window: SearchWindow, request: HttpRequest) -> QuerySet[Job]:
        self.window = window
        return self._found_among(self._listed(request), request)

    def _listed(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        """Return all jobs that pass the filters, restricted to the ids that an index has found."""
        jobs = super().get_queryset(request, exclude_parameters)
        if self.indexed.is_by_id:
            jobs = jobs.filter(self.period.has_ids)
        return jobs if self._ids_by_index is None else jobs.filter(pk__in=self._ids_by_index)

    def _found_among(self, jobs: QuerySet[Job], request: HttpRequest) -> QuerySet[Job]:
        """Return the jobs that the search finds, within the window if there is one. `get_results` uses their ids."""
        search = Search(self.query)
        if self.window is None:
            return search.among(jobs) if search.words else jobs
        matching, lone_number = self.window.among(jobs), search.lone_number
        is_post = request.method == "POST"
        if search.words:
            matching = search.among(matching)
        elif is_post:
            return matching
        ids = matching.values_list("pk", flat=True)
        # An action needs all ids; pages only need the ids that are counted.
        matching_ids = list(ids if is_post else ids[: counts.MOST_JOBS_COUNTED + 1])
        ids_from_index = [] if self.by_index is None else [*self.by_index.ids]
        if lone_number is not None:
            ids_from_index.append(lone_number)
        if ids_from_index and self.window.start is not None:
            matching_ids = [pk for pk in matching_ids if pk not in ids_from_index]  # the first window shows them
        elif missing_ids := {*ids_from_index}.difference(matching_ids):
            matching_ids = [*jobs.filter(pk__in=missing_ids).values_list("pk", flat=True), *matching_ids]
        self._found = FoundJobs(jobs, matching_ids)
        return self._found.all() if is_post else matching

    def get_results(self, request: HttpRequest) -> None:
        """Set the page's jobs and their number. A window is searched only once; its pages are made from the ids."""
        if self._found is None:
            super().get_results(request)
            return
        queryset, self.queryset = self.queryset, self._found  # Django pages through `self.queryset`
        super().get_results(request)
        self.queryset = queryset
        if isinstance(self.result_list, FoundJobs):
            self.result_list = self.result_list.all()

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Job]) -> list[Any]:
        """Return the index's order. The user cannot sort the list by a column."""
        return list(self.indexed.order.by())

    @property
    def indexed(self) -> Indexed:
        return self._indexed_in(self.state)

    def _indexed_in(self, state: str | None) -> Indexed:
        return Indexed.covering(
            state,
            self._chosen(QueueFilter),
            self.period,
            cause=getattr(self._filter(CauseFilter), "cause", None),
            key=getattr(self._filter(KeyFilter), "key", None),
            group=getattr(self._filter(GroupFilter), "group", None),
            ids=self._ids,
        )

    @property
    def state(self) -> str | None:
        """The state of the listed jobs; `None` if jobs of all states are listed."""
        return self._chosen(StateFilter)

    @property
    def total(self) -> Count:
        return self.paginator.total  # type: ignore[no-any-return]  # an IndexedPaginator

    @property
    def shown(self) -> tuple[int, int]:
        """The positions of the first and the last job on the page."""
        before = (self.page_num - 1) * self.list_per_page if self.multi_page else 0
        return before + 1, before + len(self.result_list)

    @property
    def partly_searched(self) -> SearchWindow | None:
        return None if self.window is None or self.window.is_whole_list else self.window

    @cached_property
    def unsearched(self) -> Count | None:
        """The number of jobs after the searched window; `None` if there are none."""
        rest = None if self.partly_searched is None else self.partly_searched.rest()
        return rest if rest and rest.found else None

    @property
    def command(self) -> str:
        """The command that searches the whole list; empty if the command has no options for these filters."""
        if any(map(self._chosen, (FoundFilter, GroupFilter, KeyFilter, RunsFilter))) or self._has_two_periods:
            return ""
        options = {
            "status": self.state,
            "queue": self._chosen(QueueFilter),
            "task": self._chosen(TaskFilter),
            "exception": self._chosen(CauseFilter),
            "since": _typed(self.period.since),
            "until": _typed(self.period.before),
            "search": self.query,
            "database": settings.database if settings.serves_several else "",
        }
        arguments = [f"--{name}={value}" for name, value in options.items() if value]
        return shlex.join(["python", "manage.py", "skipqueue", "list", *arguments, "--all"])

    @property
    def address_of_search(self) -> str:
        """The URL to post to, to search the whole list."""
        model_admin: Any = self.model_admin
        return f"{model_admin.address('search')}{self.get_query_string(remove=[WINDOW_VAR])}"

    @property
    def further(self) -> Iterator[tuple[Any, str]]:
        """Links to other windows and lists that can be searched: label and URL."""
        if self.window is not None and self.window.has_next:
            yield gettext("further down"), self.get_query_string({WINDOW_VAR: self.window.number + 1})
        yield from self.elsewhere

    @property
    def elsewhere(self) -> Iterator[tuple[Any, str]]:
        """Links to the lists of other states: label and URL."""
        for state in (None, Status.FAILED, RETRYING, Status.QUEUED, Status.SCHEDULED, Status.RUNNING, Status.COMPLETED):
            if state != self.state:
                yield STATES[state] if state else gettext("all jobs"), self._address(state)

    @property
    def address_without_search(self) -> str:
        return self.get_query_string(remove=[SEARCH_VAR, WINDOW_VAR])

    @property
    def has_elsewhere(self) -> bool:
        """Whether other lists may contain a match. They cannot if all jobs were searched."""
        return self.unsearched is not None or (self.is_narrowed and self.state is not None)

    @property
    def is_narrowed(self) -> bool:
        return bool(self.query or self.period) or any(map(self._chosen, (FoundFilter, GroupFilter, *NARROWING)))

    @cached_property
    def tabs(self) -> list[Tab]:
        tab_of_all_jobs = Tab("", gettext("all"), self._address(None), self.state is None, None)
        # A project without limits has no blocked jobs.
        shows_blocked = self.state == Status.BLOCKED or Job.objects.blocked().exists()
        return [tab_of_all_jobs] + [
            Tab(state, label, self._address(state), state == self.state, self._count(state))
            for state, label in STATES.items()
            if state != Status.BLOCKED or shows_blocked
        ]

    def _address(self, state: str | None) -> str:
        return self.get_query_string({StateFilter.parameter_name: state}, remove=[WINDOW_VAR])

    def _count(self, state: str) -> Count | None:
        """Count the jobs in this state that pass the filters; return `None` if no index can count them."""
        if state == self.state:
            return replace(self.total, is_lower_bound=self.unsearched is not None)
        indexed = self._indexed_in(state)
        if not self._is_found_by(indexed, state, is_searched=bool(self.query)):
            return None
        if indexed.is_of_few:
            return indexed.count(is_in(state))
        if indexed.status == Status.SCHEDULED:
            return self._scheduled.retrying if state == RETRYING else self._scheduled.first
        return indexed.count(longer_than(self._chosen(RunsFilter)) if state == Status.RUNNING else Q())

    @cached_property
    def _scheduled(self) -> ScheduledCounts:
        return ScheduledCounts.now()

    @property
    def _needs_a_window(self) -> bool:
        search, indexed = Search(self.query), self.indexed
        if search.names_an_id:
            return False
        if not self._is_found_by(indexed, self.state, is_searched=bool(search.words)):
            return True
        # The index of scheduled jobs contains retries and first attempts. Only the larger kind needs no window.
        is_scheduled = indexed.status == Status.SCHEDULED and not indexed.is_of_few
        return is_scheduled and self._scheduled.are_mostly_retries != (self.state == RETRYING)

    def _is_found_by(self, indexed: Indexed, state: str | None, *, is_searched: bool) -> bool:
        """Return whether the index finds exactly the jobs in this state that pass the filters."""
        filters_beyond_index: tuple[type[Any], ...] = (CauseFilter, KeyFilter, TaskFilter)
        is_narrower = self.period != indexed.period or self._has_two_periods
        if indexed.ids is not None:
            filters_beyond_index = (CauseFilter, GroupFilter, KeyFilter, QueueFilter, RunsFilter)
            if indexed.ids is self._ids_by_index:  # the index search already used all words and the task
                is_searched = False
            else:
                filters_beyond_index = (*filters_beyond_index, TaskFilter)
        elif indexed.group is not None:
            filters_beyond_index, is_narrower = NARROWING, is_narrower or state in (RETRYING, Status.SCHEDULED)
        elif indexed.cause is not None:
            filters_beyond_index = (KeyFilter, QueueFilter, TimeFilter)
        elif indexed.key is not None:
            filters_beyond_index = (CauseFilter, QueueFilter, TaskFilter, TimeFilter)
        else:
            is_narrower |= self._chosen(QueueFilter) != indexed.queue_name
        return not (is_searched or is_narrower or any(map(self._chosen, filters_beyond_index)))

    @cached_property
    def period(self) -> Period:
        """The period between the two times that the user typed. A preset time replaces the first if it is missing."""
        typed = getattr(self._filter(PeriodFilter), "period", Period())
        preset = TIME_PRESETS.get(self._chosen(TimeFilter) or "")
        if typed.since is not None or preset is None:
            return typed
        duration, _label = preset
        return Period(duration, typed.before)

    @property
    def _has_two_periods(self) -> bool:
        return self._chosen(TimeFilter) is not None and not isinstance(self.period.since, timedelta)

    @cached_property
    def by_index(self) -> FoundByIndex | None:
        """The jobs with a searched argument, found in the whole table by an index of `SEARCHABLE`."""
        search = Search(self.query)
        return FoundByIndex.of(search.arguments, self._chosen(TaskFilter), search.among)

    @property
    def _ids_by_index(self) -> tuple[int, ...] | None:
        """The ids of all matching jobs of the chosen task, if an index has found them."""
        return self.by_index.ids if self.by_index and self._chosen(TaskFilter) else None

    @property
    def _ids(self) -> tuple[int, ...] | None:
        """The ids of the jobs that the list may contain, if they are known."""
        ids: tuple[int, ...] | None = getattr(self._filter(FoundFilter), "ids", None)
        return self._ids_by_index if ids is None else ids

    def _chosen(self, filter_class: type[Any]) -> str | None:
        """Return the value of this filter; `None` if the user has not chosen one."""
        chosen_filter = self._filter(filter_class)
        return None if chosen_filter is None else chosen_filter.value()

    def _filter(self, filter_class: type[Any]) -> Any:
        return next((spec for spec in self.filter_specs if isinstance(spec, filter_class)), None)


def _typed(moment: Moment | None) -> str:
    """Return a time as the value of a command-line option."""
    if isinstance(moment, timedelta):
        return f"{moment // HOUR}h"
    return f"{moment:%Y-%m-%dT%H:%M%z}" if moment else ""
