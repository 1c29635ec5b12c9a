"""The filters of the list of batches: by state, and by the batch that they belong to."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import JobBatch
from ...operators.batch_states import CONDITIONS, STATES
from ...operators.ids import is_id


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobBatch]) -> QuerySet[JobBatch]:
        condition = CONDITIONS.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class InsideFilter(admin.SimpleListFilter):
    """The inner batches of one. Offered in links only."""

    title = _("belongs to")
    parameter_name = "inside"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        chosen = self.value()
        return [(chosen, f"#{chosen}")] if chosen else []

    def value(self) -> str | None:
        chosen = super().value()
        return chosen if chosen and is_id(chosen) else None

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobBatch]) -> QuerySet[JobBatch]:
        chosen = self.value()
        return queryset.filter(parent_id=int(chosen)) if chosen else queryset
