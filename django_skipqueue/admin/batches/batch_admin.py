"""Batches in the admin: their list, and the page of one.

Invariant: they change nothing. The buttons post to the list of jobs, which asks and applies the verb.
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import JobBatch
from ...operators.batch_states import batch_states, with_time
from ...operators.ids import is_id
from ..ui.own_views import OwnViews
from ..ui.paginator import CappedPaginator
from ..ui.refreshing import refreshing
from .batch_page import BatchPage
from .columns import COLUMNS
from .filters import InsideFilter, StateFilter

SEARCHED = 20_000
"""The newest batches, whose names are searched."""


class BatchChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Set the batches of the page, with their progress: a query or two for all."""
        super().get_results(request)
        self.cells = [[(column, column.cell(each)) for column in COLUMNS] for each in batch_states(self.result_list)]


@admin.register(JobBatch)
class BatchAdmin(OwnViews):
    """Batches are made by code, and finished by workers; nobody edits them here."""

    list_filter = (StateFilter, InsideFilter)
    list_per_page = list_max_show_all = 25
    list_display_links = None
    ordering = ("-pk",)
    sortable_by = ()
    actions = None
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
    search_fields = ("name",)
    search_help_text = _("An id (#42), or a part of the name of one of the newest 20,000 batches.")
    change_list_template = "admin/django_skipqueue/jobbatch/change_list.html"

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/batches.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: JobBatch | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: JobBatch | None = None) -> bool:
        """Finished ones are deleted with their retention."""
        return False

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        context = {"title": capfirst(str(self.opts.verbose_name_plural)), "columns": COLUMNS}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobBatch]:
        return with_time(JobBatch.objects.all())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BatchChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[JobBatch], search_term: str
    ) -> tuple[QuerySet[JobBatch], bool]:
        """By id, or by a part of the name among the newest."""
        text = search_term.replace("\0", "").strip()
        if is_id(text.removeprefix("#")):
            return queryset.filter(pk=int(text.removeprefix("#"))), False
        if not text:
            return queryset, False
        newest = JobBatch.objects.order_by("-pk").values("pk")[:SEARCHED]
        return queryset.filter(pk__in=newest, name__icontains=text), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow no lookup in the address but the filters."""
        return lookup in {each.parameter_name for each in self.list_filter}

    @refreshing
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a batch. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = BatchPage.of(int(object_id)) if is_id(object_id) else None
        if page is None:
            message = gettext("There is no batch %(id)s. It may have been pruned.") % {"id": object_id}
            self.message_user(request, message, messages.WARNING)
            return HttpResponseRedirect(self.address("changelist"))
        title = page.name or gettext("Batch %(id)s") % {"id": page.row.pk}
        context = self.context(request, page.row, title=title) | {
            "page": page,
            "groups": [(group, self._verbs_for(request, group.verbs)) for group in page.jobs],
            "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
        }
        return TemplateResponse(request, "admin/django_skipqueue/jobbatch/batch.html", context | (extra_context or {}))

    def _verbs_for(self, request: HttpRequest, verbs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        user = request.user
        if not user.has_perm("django_skipqueue.view_job"):
            return []
        return [(verb, label) for verb, label in verbs if user.has_perm(f"django_skipqueue.{verb.permission}_job")]
