"""The filters of the list of archived jobs, beside those that it shares with the list of jobs."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone, is_naive, make_aware
from django.utils.translation import gettext_lazy as _

from ...models import FINISHED, ArchivedJob
from ..jobs.filters import StateFilter

FIRST, BEFORE = "first", "before"


class StatusFilter(StateFilter):
    """By status. It is shown as tabs over the list."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(status.value, status.label) for status in FINISHED]

    def value(self) -> str | None:
        """The chosen status; `None` if the address has no valid one."""
        chosen = super().value()
        return chosen if chosen in FINISHED else None


class PeriodFilter(admin.ListFilter):
    """By the time at which jobs finished: two times to type, either of which may be empty."""

    title = _("time finished")
    parameter_name = "period"  # not in the address: django-unfold reads it of every filter
    template = "admin/django_skipqueue/archivedjob/period_filter.html"

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[ArchivedJob], model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        typed = {name: params.pop(name, [""])[-1] for name in (FIRST, BEFORE)}
        self.used_parameters = {name: text for name, text in typed.items() if text}
        self.first, self.before = _moment(typed[FIRST]), _moment(typed[BEFORE])

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [FIRST, BEFORE]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The two fields, and the other parameters of the address, which its form has to keep."""
        yield {
            "first": _typed(self.first),
            "before": _typed(self.before),
            "others": [
                (name, value) for name, value in _parameters(changelist) if name not in self.expected_parameters()
            ],
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[ArchivedJob]) -> QuerySet[ArchivedJob]:
        if self.first is not None:
            queryset = queryset.filter(finished_at__gte=self.first)
        return queryset if self.before is None else queryset.filter(finished_at__lt=self.before)


def _parameters(changelist: ChangeList) -> Iterable[tuple[str, str]]:
    return [(name, value) for name, value in changelist.params.items() if name != "look"]


def _moment(text: str) -> datetime | None:
    """The time that was typed; `None` for anything else."""
    try:
        moment = parse_datetime(text)
        return make_aware(moment, get_current_timezone()) if moment and is_naive(moment) else moment
    except (ValueError, OverflowError):
        return None


def _typed(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(get_current_timezone()):%Y-%m-%dT%H:%M}"
