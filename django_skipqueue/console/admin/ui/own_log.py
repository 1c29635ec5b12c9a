"""Django's log of admin actions, for objects of several databases: it is in the project's default database.

Invariant: an entry stands in the history of its object alone, and not of the one with the same id in another database.
"""

from copy import copy
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import PAGE_VAR
from django.contrib.contenttypes.models import ContentType
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from ....conf import load, settings

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin

SHOWN = 100
"""Entries on a page of a history."""


def logged_id(pk: object) -> str:
    """The id of an object in Django's log: with its database, unless that is the one of an address that names none.

    So an entry does not stand in the history of the object with the same id in another database.
    """
    is_home = not settings.serves_several or settings.database == load().database
    return str(pk) if is_home else f"{settings.database}:{pk}"


class OwnLog(AnyModelAdmin):
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_addition(request, _as_logged(obj), message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, _as_logged(obj), message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        return super().log_deletions(request, cast("Any", [_as_logged(each) for each in queryset]))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        pk = unquote(object_id)
        if logged_id(pk) == pk:
            return super().history_view(request, object_id, extra_context)
        about = ContentType.objects.get_for_model(self.model)
        entries = LogEntry.objects.filter(content_type=about, object_id=logged_id(pk)).select_related("user")
        shown = Paginator(entries.order_by("action_time"), SHOWN).get_page(request.GET.get(PAGE_VAR, 1))
        context = {
            "action_list": shown,
            "page_range": shown.paginator.get_elided_page_range(shown.number),
            "pagination_required": shown.paginator.num_pages > 1,
        }
        return super().history_view(request, object_id, context | (extra_context or {}))


def _as_logged(obj: Any) -> Any:
    logged = copy(obj)
    logged.pk = logged_id(obj.pk)
    return logged
