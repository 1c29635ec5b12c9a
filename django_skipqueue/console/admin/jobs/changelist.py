"""The list of jobs: in the order of an index, with a count that stops, and tabs over it.

Invariant: opening the list, however it is filtered, reads a page from an index, or searches one window of it.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext

from ....conf import settings
from ....models import Job, Status
from ....values.records import Cause
from ... import counts
from ...counts import Count
from ...job_states import RETRYING, STATES, Group, Indexed, Key, ScheduledCounts, is_indexed, time_column
from ...search import Search, Window, is_id
from ..ui.paginator import Found
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
from .tabs import Tab

WINDOW_VAR = "look"
"""In the address: the number of the window that is searched."""

HOUR = timedelta(hours=1)

NARROWING = (CauseFilter, KeyFilter, QueueFilter, RunsFilter, TaskFilter, TimeFilter)
"""The filters of which the index of a group knows nothing."""


class JobChangeList(ChangeList):
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
        return self._indexed_in(self.state, group=self._group)

    def _indexed_in(self, state: str | None, group: Group | None = None) -> Indexed:
        return Indexed.covering(
            state,
            self._chosen(QueueFilter),
            self._first,
            cause=self._cause,
            key=self._key,
            group=group,
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
        options = {
            "status": self.state,
            "queue": self._chosen(QueueFilter),
            "task": self._chosen(TaskFilter),
            "exception": self._chosen(CauseFilter),
            "since": _as_option(self._first) or (time and f"{TIMES[time][0] // HOUR}h"),
            "until": _as_option(self._before),
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
        return bool(self.query) or self._has_period or any(map(self._chosen, (GroupFilter, *NARROWING)))

    @cached_property
    def tabs(self) -> list[Tab]:
        everything = Tab("", gettext("all"), self._address(None), self.state is None, None)
        return [everything] + [
            Tab(state, label, self._address(state), state == self.state, self._count_for_tab(state))
            for state, label in STATES.items()
            if state != Status.BLOCKED or self._shows_blocked
        ]

    @cached_property
    def _shows_blocked(self) -> bool:
        """Whether there is a tab for blocked jobs: a project without limits has none."""
        return self.state == Status.BLOCKED or Job.objects.blocked().exists()

    def _address(self, state: str | None) -> str:
        return self.get_query_string({StateFilter.parameter_name: state}, remove=[WINDOW_VAR])

    def _count_for_tab(self, state: str) -> Count | None:
        """The number of jobs that the list would have for this state; it has counted its own."""
        if state == self.state:
            return replace(self.total, is_least=self.unsearched is not None)
        return self._count(state)

    def _count(self, state: str) -> Count | None:
        """The number of jobs in this state that pass the filters; `None` where no index has it."""
        queue_name, time, column = self._chosen(QueueFilter), self._chosen(TimeFilter), time_column(state)
        if self._group is not None:
            return self._count_of_group(state)
        indexed = self._indexed_in(state)
        is_period_left = self._is_left_to_search(indexed)
        if indexed.cause is not None and queue_name is time is None and not self.query and not is_period_left:
            return indexed.count()
        if indexed.key is not None and not self._is_narrowed_within_a_key:
            return indexed.count()
        if (
            self.query
            or self._chosen(TaskFilter) is not None
            or self._chosen(CauseFilter) is not None
            or self._key is not None
            or queue_name != indexed.queue_name
            or (time is not None and not is_indexed(column))
            or is_period_left
        ):
            return None
        if indexed.status == Status.SCHEDULED:
            return self._scheduled.retrying if state == RETRYING else self._scheduled.first
        condition = longer_than(self._chosen(RunsFilter)) if state == Status.RUNNING else Q()
        return indexed.count(condition & since(time, column))

    def _count_of_group(self, state: str) -> Count | None:
        """The number of jobs of the group; `None` where its index does not have it."""
        if self.query or state in (RETRYING, Status.SCHEDULED) or self._is_narrowed_within_a_group:
            return None
        return Indexed.covering(state, group=self._group).count()

    @cached_property
    def _scheduled(self) -> ScheduledCounts:
        return ScheduledCounts.now()

    @property
    def _needs_a_window(self) -> bool:
        search = Search(self.query)
        if search.names_an_id:
            return False
        time = self._filter(TimeFilter)
        if self._group is not None:
            is_narrowed = self._is_narrowed_within_a_group or self.state in (RETRYING, Status.SCHEDULED)
            return bool(search.words) or is_narrowed
        if self.indexed.cause is not None:
            others = (KeyFilter, QueueFilter, TimeFilter)
            return bool(search.words) or self._has_period or any(map(self._chosen, others))
        if self.indexed.key is not None:
            return self._is_narrowed_within_a_key
        return (
            bool(search.words)
            or self._chosen(TaskFilter) is not None
            or self._chosen(CauseFilter) is not None
            or self._key is not None
            or self._chosen(QueueFilter) != self.indexed.queue_name
            or (time is not None and time.value() is not None and not time.is_indexed)
            or self._is_left_to_search(self.indexed)
            or (self.state == RETRYING and not self._scheduled.are_mostly_retries)
            or (self.state == Status.SCHEDULED and self._scheduled.are_mostly_retries)
        )

    @property
    def _is_narrowed_within_a_key(self) -> bool:
        filters = (CauseFilter, QueueFilter, TaskFilter, TimeFilter)
        return bool(self.query) or self._has_period or any(map(self._chosen, filters))

    @property
    def _is_narrowed_within_a_group(self) -> bool:
        return self._has_period or any(map(self._chosen, NARROWING))

    def _is_left_to_search(self, indexed: Indexed) -> bool:
        """Whether a period is chosen that this index does not find."""
        return (self._first, self._before) != (indexed.since, indexed.before)

    @property
    def _has_period(self) -> bool:
        return self._first is not None or self._before is not None

    @property
    def _first(self) -> datetime | None:
        chosen = self._filter(PeriodFilter)
        return None if chosen is None else chosen.first

    @property
    def _before(self) -> datetime | None:
        chosen = self._filter(PeriodFilter)
        return None if chosen is None else chosen.before

    @property
    def _cause(self) -> Cause | None:
        chosen = self._filter(CauseFilter)
        return None if chosen is None else chosen.cause

    @property
    def _key(self) -> Key | None:
        chosen = self._filter(KeyFilter)
        return None if chosen is None else chosen.key

    @property
    def _group(self) -> Group | None:
        chosen = self._filter(GroupFilter)
        return None if chosen is None else chosen.group

    def _chosen(self, kind: type[Any]) -> str | None:
        chosen = self._filter(kind)
        return None if chosen is None else chosen.value()

    def _filter(self, kind: type[Any]) -> Any:
        return next((each for each in self.filter_specs if isinstance(each, kind)), None)


def _as_option(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%dT%H:%M%z}" if moment else ""
