"""The filters of the job list. No filter reads the job table to find its choices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.timezone import get_current_timezone, is_naive, make_aware
from django.utils.translation import gettext_lazy as _

from ....models import Job, Status
from ....models.copies import BULK_TASK
from ....models.expressions import has_cause
from ....values.codec import shorten
from ....values.records import Cause
from ...arguments import redacted
from ...job_states import STATES, Group, Key, is_in, time_column
from ...periods import Period
from ...queues_and_workers import known_queue_names, known_task_names
from ...search import cause_of_text, has_raised, is_id
from ..bulk import BulkProgress
from ..ui.cells import CELL_LIMIT

TIME_PRESETS: Mapping[str, tuple[timedelta, Any]] = {
    "hour": (timedelta(hours=1), _("Last hour")),
    "day": (timedelta(days=1), _("Last 24 hours")),
    "week": (timedelta(days=7), _("Last 7 days")),
    "month": (timedelta(days=30), _("Last 30 days")),
}


RUN_TIME_PRESETS: Mapping[str, tuple[timedelta, Any]] = {
    "1m": (timedelta(minutes=1), _("Longer than 1 minute")),
    "10m": (timedelta(minutes=10), _("Longer than 10 minutes")),
    "1h": (timedelta(hours=1), _("Longer than 1 hour")),
    "6h": (timedelta(hours=6), _("Longer than 6 hours")),
}


TIME_TITLES = {
    "finished_at": _("time finished"),
    "locked_at": _("time started"),
    "enqueued_at": _("time enqueued"),
}


def longer_than(chosen: str | None) -> Q:
    """Return the condition for jobs that have run longer than the chosen time. Index: recover."""
    duration, _label = RUN_TIME_PRESETS.get(chosen or "", (None, ""))
    return Q(locked_at__lte=Now() - duration) if duration else Q()


class StateFilter(admin.SimpleListFilter):
    """Filters by status, or by *retrying*. It is shown as tabs above the list, not with the other filters."""

    title = _("status")
    parameter_name = "status"
    template = "admin/django_skipqueue/job/no_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(STATES.items())

    def value(self) -> str | None:
        """Return the chosen state; `None` if the URL contains no valid state."""
        chosen_state = super().value()
        return chosen_state if chosen_state in STATES else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        chosen_state = self.value()
        return queryset.filter(is_in(chosen_state)) if chosen_state else queryset


class NameFilter(admin.SimpleListFilter):
    """Filters by a name. The name in the URL is always among the choices, even if it is unknown."""

    column: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen_name = self.value()
        return [(name, name) for name in sorted({*self.names(), *([chosen_name] if chosen_name else [])})]

    def names(self) -> list[str]:
        """Return the choices. A filter that is only used in links has none."""
        return []

    def value(self) -> str | None:
        """Return the chosen name without characters that PostgreSQL rejects."""
        chosen_name = super().value()
        return chosen_name.replace("\0", "") if chosen_name else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(**{self.column: self.value()}) if self.value() else queryset


class QueueFilter(NameFilter):
    title = _("queue")
    parameter_name = "queue"
    column = "queue_name"

    def names(self) -> list[str]:
        return known_queue_names()


MOST_LINKS = 15
"""Up to this number of tasks, each task is a link. With more tasks, the user types a name and gets suggestions."""


class TaskFilter(NameFilter):
    title = _("task")
    parameter_name = "task"
    column = "task"
    template = "admin/django_skipqueue/job/task_filter.html"
    others: Sequence[tuple[str, str]] | None = None
    """The URL's other parameters, which the form has to keep; `None` if the tasks are links."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield each task with its module and function name. The name may wrap after an underscore."""
        all_tasks, *tasks = super().choices(changelist)
        if len(tasks) > MOST_LINKS:
            self.others = _other_parameters(changelist, self.parameter_name)
        yield {**all_tasks, "module": ""}
        for choice in sorted(tasks, key=lambda choice: str(choice["display"]).rpartition(".")):
            module, _, function = str(choice["display"]).rpartition(".")
            display = format_html_join(mark_safe("_<wbr>"), "{}", ([word] for word in function.split("_")))
            yield {**choice, "module": module, "display": display}

    def names(self) -> list[str]:
        return known_task_names()


class CauseFilter(NameFilter):
    """Filters by the cause of the last error: the exception class and the line that raised it.

    Only links use this filter. If a task is chosen too, an index finds the failed and retrying jobs.
    """

    title = _("cause")
    parameter_name = "cause"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self._task = request.GET.get(TaskFilter.parameter_name, "").replace("\0", "")

    @property
    def cause(self) -> Cause | None:
        """The cause, if the URL also names a task."""
        chosen_cause = self.value()
        return cause_of_text(self._task, chosen_cause) if chosen_cause and self._task else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.cause is not None:
            return queryset.filter(has_cause(self.cause))
        chosen_cause = self.value()
        return queryset.filter(has_raised(chosen_cause)) if chosen_cause else queryset


class KeyFilter(NameFilter):
    """Filters by a key.

    The URL has the id of a job with this key, because the key itself may contain a secret. Only links use this filter,
    and parts subclass it. An index finds the key's blocked jobs.
    """

    without: ClassVar[Any]
    """The label if the job was deleted, or has no key."""

    def index(self, text: str) -> Key:
        """Return the jobs whose key is this text."""
        raise NotImplementedError

    @cached_property
    def key(self) -> Key | None:
        """The key; `None` if no job is chosen; an empty key if the job was deleted or has no key."""
        return None if self.value() is None else self.index(self._text or "")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        label = str(self.without)
        if self._job is not None and self._text is not None:
            masked_key = redacted(self._job.task, self._job.args, self._job.kwargs).text(self._text)
            label = shorten(masked_key, CELL_LIMIT)
        chosen_id = self.value()
        return [(chosen_id, label)] if chosen_id else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.key is None:
            return queryset
        is_blocked = request.GET.get(StateFilter.parameter_name) == Status.BLOCKED
        return queryset.filter(self.key.waiting if is_blocked else self.key.condition)

    @cached_property
    def _job(self) -> Job | None:
        chosen_id = self.value() or ""
        columns = ("task", "args", "kwargs", self.column)
        return Job.objects.only(*columns).filter(pk=chosen_id).first() if is_id(chosen_id) else None

    @property
    def _text(self) -> str | None:
        """The key of the job that is named in the URL."""
        return getattr(self._job, self.column, None)


class GroupFilter(admin.SimpleListFilter):
    """Filters by an id in an indexed column, such as the batch. Only links use this filter, and parts subclass it."""

    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen_id = self.value()
        return [(chosen_id, f"#{chosen_id}")] if chosen_id else []

    def value(self) -> str | None:
        chosen_id = super().value()
        return chosen_id if chosen_id and is_id(chosen_id) else None

    @property
    def group(self) -> Group | None:
        chosen_id = self.value()
        return Group(self.column, int(chosen_id)) if chosen_id else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset if self.group is None else queryset.filter(self.group.condition)


class FoundFilter(admin.SimpleListFilter):
    """Filters by the result of a search in a worker. The URL has the search job's id. Only links use this filter."""

    title = _("search")
    parameter_name = "found"

    @cached_property
    def ids(self) -> tuple[int, ...] | None:
        """The ids of the jobs that the search found; `None` if no search is chosen."""
        chosen_id = self.value()
        if chosen_id is None:
            return None
        job = Job.objects.filter(pk=chosen_id, task=BULK_TASK).first() if is_id(chosen_id) else None
        progress = BulkProgress.of(job) if job else None
        return progress.found if progress else ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        chosen_id = self.value()
        return [(chosen_id, f"#{chosen_id}")] if chosen_id else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset if self.ids is None else queryset.filter(pk__in=self.ids)


class PresetFilter(admin.SimpleListFilter):
    presets: Mapping[str, tuple[timedelta, Any]]
    """The duration and the label of each choice, by its name in the URL."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(name, label) for name, (_, label) in self.presets.items()]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        any_time, *presets = super().choices(changelist)
        yield {**any_time, "display": _("Any time")}
        yield from presets


class TimeFilter(PresetFilter):
    """Filters by the time that the list is sorted by: when jobs finished, started, or were enqueued."""

    parameter_name = "time"
    title = _("time")
    presets = TIME_PRESETS

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.column = time_column(request.GET.get(StateFilter.parameter_name))
        self.title = TIME_TITLES[self.column]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        duration, _label = TIME_PRESETS.get(self.value() or "", (None, ""))
        return queryset.filter(Period(duration).of(self.column)) if duration else queryset


FIRST, BEFORE = "first", "before"
"""The URL parameters of `PeriodFilter`."""


class PeriodFilter(admin.ListFilter):
    """Filters by a period of the same time as `TimeFilter`. The user types two times, and may leave one empty."""

    title = _("period")
    parameter_name = "period"  # not used in the URL, but django-unfold expects it of every filter
    template = "admin/django_skipqueue/job/period_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Any], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        typed = {name: params.pop(name, [""])[-1] for name in (FIRST, BEFORE)}
        self.used_parameters = {name: text for name, text in typed.items() if text}
        self.period = Period(_parsed_time(typed[FIRST]), _parsed_time(typed[BEFORE]))
        self.column = self.column_of(request.GET.get(StateFilter.parameter_name))

    def column_of(self, state: str | None) -> str:
        return time_column(state)

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [FIRST, BEFORE]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the values of the two fields, and the URL's other parameters, which the form has to keep."""
        other_parameters = _other_parameters(changelist, FIRST, BEFORE)
        zone = get_current_timezone()
        first, before = (
            f"{moment.astimezone(zone):%Y-%m-%dT%H:%M}" if isinstance(moment, datetime) else ""
            for moment in (self.period.since, self.period.before)
        )
        yield {"first": first, "before": before, "others": other_parameters}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.period.of(self.column))


def _other_parameters(changelist: ChangeList, *names: str) -> list[tuple[str, str]]:
    """Return the URL's parameters, except these names, and except `look`: which part of the list to search."""
    return [(name, value) for name, value in changelist.params.items() if name not in (*names, "look")]


def _parsed_time(text: str) -> datetime | None:
    try:
        moment = parse_datetime(text)
        return make_aware(moment, get_current_timezone()) if moment and is_naive(moment) else moment
    except (ValueError, OverflowError):
        return None


class RunsFilter(PresetFilter):
    """Filters running jobs by how long they have run. Lists of other jobs do not have this filter."""

    title = _("running time")
    parameter_name = "runs"
    presets = RUN_TIME_PRESETS

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        self.is_offered = request.GET.get(StateFilter.parameter_name) == Status.RUNNING
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return super().lookups(request, model_admin) if self.is_offered else []

    def value(self) -> str | None:
        return super().value() if self.is_offered else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(longer_than(self.value()))
