"""The filters of the list of archived jobs, beside those that it shares with the list of jobs."""

from typing import Any

from django.http import HttpRequest

from ...models import FINISHED
from ..jobs.filters import PeriodFilter, StateFilter


class StatusFilter(StateFilter):
    """By status. It is shown as tabs over the list."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(status.value, status.label) for status in FINISHED]

    def value(self) -> str | None:
        """The chosen status; `None` if the address has no valid one."""
        chosen = super().value()
        return chosen if chosen in FINISHED else None


class FinishedFilter(PeriodFilter):
    """By the time at which jobs finished, whatever their status."""

    def column_of(self, state: str | None) -> str:
        return "finished_at"
