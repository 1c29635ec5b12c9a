"""The list of jobs: in the order of an index, with a count that stops, tabs over it, and its pages.

Invariant: opening the list, however it is filtered, reads a page from an index, or searches one window of it.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
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
from ...job_states import RETRYING, STATES, Indexed, ScheduledCounts, is_indexed, time_column
from ...search import Search, Window, is_id
from ..ui.views import OwnChangeList
from .filters import (
    TIMES,
    CauseFilter,
    GroupFilter,
    KeyFilter,
    PeriodFilter,
    QueueFilter,
    RunsFilter,
    StateFilter,
    TaskFilter,
    TimeFilter,
    longer_than,
    since,
)

if TYPE_CHECKING:
    JobPaginator = Paginator[Job]
else:
    JobPaginator = Paginator

WINDOW_VAR = "look"
"""In the address: the number of the window that is searched."""

HOUR = timedelta(hours=1)

NARROWING = (CauseFilter, KeyFilter, QueueFilter, RunsFilter, TaskFilter, TimeFilter)
"""The filters of which the index of a group knows nothing."""


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


@dataclass(frozen=True)
class Tab:
    state: str
    label: Any
    address: str
    is_selected: bool
    count: Count | None


class JobChangeList(OwnChangeList):
    window: Window | None = None
    """The part of the list that is searched; `None`: an index finds all that match."""

    _found: Found | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        number = request.GET.get(WINDOW_VAR, "")
        self.window_number = max(int(number), 1) if is_id(number) else 1
        super().__init__(request, *args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return {name: value for name, value in super().get_filters_params(params).items() if name != WINDOW_VAR}

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        jobs = super().get_queryset(request, exclude_parameters)
        self._filtered = jobs
        self.window = Window.at(self.indexed, self.window_number) if self._needs_a_window else None
        return self._found_among(jobs, request)

    def expected(self) -> int:
        """About how many jobs of all of the list match, by the database's statistics; 0 if these do not say.

        They know statuses, queues, tasks and times, and not what is in a text.
        """
        return 0 if Search(self.query).words else counts.expected(self._filtered)

    def jobs_within(self, window: Window, request: HttpRequest) -> QuerySet[Job]:
        self.window = window
        return self._found_among(super().get_queryset(request), request)

    def _found_among(self, jobs: QuerySet[Job], request: HttpRequest) -> QuerySet[Job]:
        search = Search(self.query)
        if self.window is None:
            return search.among(jobs) if search.words else jobs
        matching, number, is_action = self.window.among(jobs), search.lone_number, request.method == "POST"
        if search.words:
            matching = search.among(matching)
        elif is_action:
            return matching
        ids = matching.values_list("pk", flat=True)
        found = list(ids if is_action else ids[: counts.CAP + 1])  # an action takes all; pages show what is counted
        if number is not None and self.window.start is not None:
            found = [pk for pk in found if pk != number]  # it stands in the front
        elif number is not None and number not in found and jobs.filter(pk=number).exists():
            found.insert(0, number)
        self._found = Found(jobs, found)
        return self._found.all() if is_action else matching

    def get_results(self, request: HttpRequest) -> None:
        """Set the jobs of the page, and their number. A window is searched once: its pages are made from the ids."""
        if self._found is None:
            super().get_results(request)
            return
        queryset, self.queryset = self.queryset, self._found
        super().get_results(request)
        self.queryset = queryset
        if isinstance(self.result_list, Found):
            self.result_list = self.result_list.all()

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Job]) -> list[Any]:
        """The order of the index. There is no other: the columns cannot be clicked to sort the list."""
        return list(self.indexed.order.by())

    @property
    def indexed(self) -> Indexed:
        return self._indexed_in(self.state)

    def _indexed_in(self, state: str | None) -> Indexed:
        return Indexed.covering(
            state,
            self._chosen(QueueFilter),
            self._first,
            cause=getattr(self._filter(CauseFilter), "cause", None),
            key=getattr(self._filter(KeyFilter), "key", None),
            group=getattr(self._filter(GroupFilter), "group", None),
            before=self._before,
        )

    @property
    def state(self) -> str | None:
        """The state whose jobs are listed; `None`: any."""
        return self._chosen(StateFilter)

    @property
    def total(self) -> Count:
        return self.paginator.total  # type: ignore[no-any-return]  # an IndexedPaginator

    @property
    def shown(self) -> tuple[int, int]:
        before = (self.page_num - 1) * self.list_per_page if self.multi_page else 0
        return before + 1, before + len(self.result_list)

    @property
    def partly_searched(self) -> Window | None:
        return None if self.window is None or self.window.is_whole_list else self.window

    @cached_property
    def unsearched(self) -> Count | None:
        """How many jobs of the list come after the part that was searched; `None` if there are none."""
        rest = None if self.partly_searched is None else self.partly_searched.rest()
        return rest if rest and rest.found else None

    @property
    def command(self) -> str:
        """The command that searches all of the list; empty if it has no options for the filters."""
        time = self._chosen(TimeFilter)
        if any(map(self._chosen, (GroupFilter, KeyFilter, RunsFilter))) or (time and self._first):
            return ""
        first, before = (f"{each:%Y-%m-%dT%H:%M%z}" if each else "" for each in (self._first, self._before))
        options = {
            "status": self.state,
            "queue": self._chosen(QueueFilter),
            "task": self._chosen(TaskFilter),
            "exception": self._chosen(CauseFilter),
            "since": first or (time and f"{TIMES[time][0] // HOUR}h"),
            "until": before,
            "search": self.query,
            "database": settings.database if settings.serves_several else "",
        }
        given = [f"--{name}={value}" for name, value in options.items() if value]
        return shlex.join(["python", "manage.py", "skipqueue", "list", *given, "--all"])

    @property
    def further(self) -> Iterator[tuple[Any, str]]:
        """The other places to search: label and address."""
        if self.window is not None and self.window.has_next:
            yield gettext("further down"), self.get_query_string({WINDOW_VAR: self.window.number + 1})
        yield from self.elsewhere

    @property
    def elsewhere(self) -> Iterator[tuple[Any, str]]:
        """The other lists: label and address."""
        for state in (None, Status.FAILED, RETRYING, Status.QUEUED, Status.SCHEDULED, Status.RUNNING, Status.COMPLETED):
            if state != self.state:
                yield STATES[state] if state else gettext("all jobs"), self._address(state)

    @property
    def address_without_search(self) -> str:
        return self.get_query_string(remove=[SEARCH_VAR, WINDOW_VAR])

    @property
    def has_elsewhere(self) -> bool:
        """Whether other lists may have a match: not if all jobs were searched."""
        return self.unsearched is not None or (self.is_narrowed and self.state is not None)

    @property
    def is_narrowed(self) -> bool:
        has_period = self._first is not None or self._before is not None
        return bool(self.query) or has_period or any(map(self._chosen, (GroupFilter, *NARROWING)))

    @cached_property
    def tabs(self) -> list[Tab]:
        everything = Tab("", gettext("all"), self._address(None), self.state is None, None)
        # A project without limits has no blocked jobs.
        shows_blocked = self.state == Status.BLOCKED or Job.objects.blocked().exists()
        return [everything] + [
            Tab(state, label, self._address(state), state == self.state, self._count(state))
            for state, label in STATES.items()
            if state != Status.BLOCKED or shows_blocked
        ]

    def _address(self, state: str | None) -> str:
        return self.get_query_string({StateFilter.parameter_name: state}, remove=[WINDOW_VAR])

    def _count(self, state: str) -> Count | None:
        """The number of jobs in this state that pass the filters; `None` where no index has it."""
        if state == self.state:
            return replace(self.total, is_least=self.unsearched is not None)
        indexed = self._indexed_in(state)
        if not self._is_found_by(indexed, state, is_searched=bool(self.query)):
            return None
        if _is_of_few(indexed):
            return indexed.count()
        if indexed.status == Status.SCHEDULED:
            return self._scheduled.retrying if state == RETRYING else self._scheduled.first
        condition = longer_than(self._chosen(RunsFilter)) if state == Status.RUNNING else Q()
        return indexed.count(condition & since(self._chosen(TimeFilter), time_column(state)))

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
        is_scheduled = indexed.status == Status.SCHEDULED and not _is_of_few(indexed)
        return is_scheduled and self._scheduled.are_mostly_retries != (self.state == RETRYING)

    def _is_found_by(self, indexed: Indexed, state: str | None, *, is_searched: bool) -> bool:
        """Whether the index finds the jobs in this state that pass the filters, and no others."""
        others: tuple[type[Any], ...] = (CauseFilter, KeyFilter, TaskFilter)
        is_narrower = (self._first, self._before) != (indexed.since, indexed.before)
        if indexed.group is not None:
            others, is_narrower = NARROWING, is_narrower or state in (RETRYING, Status.SCHEDULED)
        elif indexed.cause is not None:
            others = (KeyFilter, QueueFilter, TimeFilter)
        elif indexed.key is not None:
            others = (CauseFilter, QueueFilter, TaskFilter, TimeFilter)
        else:
            has_time = self._chosen(TimeFilter) is not None and not is_indexed(time_column(state))
            is_narrower |= has_time or self._chosen(QueueFilter) != indexed.queue_name
        return not (is_searched or is_narrower or any(map(self._chosen, others)))

    @property
    def _first(self) -> datetime | None:
        return getattr(self._filter(PeriodFilter), "first", None)

    @property
    def _before(self) -> datetime | None:
        return getattr(self._filter(PeriodFilter), "before", None)

    def _chosen(self, kind: type[Any]) -> str | None:
        chosen = self._filter(kind)
        return None if chosen is None else chosen.value()

    def _filter(self, kind: type[Any]) -> Any:
        return next((each for each in self.filter_specs if isinstance(each, kind)), None)


def _is_of_few(indexed: Indexed) -> bool:
    return indexed.group is not None or indexed.cause is not None or indexed.key is not None
