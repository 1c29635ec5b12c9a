"""Jobs in the admin: what their list shows, and how it can be filtered and searched.

Invariant: jobs are never added or edited here, and the list reads nothing that it does not show.
"""

from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ....models import Job
from ...parts import consoles, pages
from ..ui.cells import badge_of
from ..ui.paginator import IndexedPaginator
from ..ui.views import refreshing
from ..verbs.table import BUTTONS
from . import job_cells
from .actions import JobActions
from .changelist import JobChangeList
from .filters import (
    BEFORE,
    FIRST,
    CauseFilter,
    PeriodFilter,
    QueueFilter,
    RunsFilter,
    StateFilter,
    TaskFilter,
    TimeFilter,
)


@admin.register(Job)
class JobAdmin(JobActions):
    list_display = ("status_badge", "job", "call_and_error", "queue", "attempts_made", "when")
    list_display_links = ("job",)
    list_filter = (
        StateFilter,
        CauseFilter,
        RunsFilter,
        QueueFilter,
        TaskFilter,
        TimeFilter,
        PeriodFilter,
    )
    list_per_page = list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = IndexedPaginator
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _(
        "An id (#42), an argument (payment_id=42, order.id=42), or a part of a task, error, value or queue. "
        "Several words must all match."
    )

    class Media:
        css = {"all": ["django_skipqueue/admin.css"]}

    def __init__(self, model: type[Job], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if admin_site.index_template is None:  # a project's own index page places `{% queue_notices %}` itself
            admin_site.index_template = "admin/django_skipqueue/index.html"

    def get_urls(self) -> list[URLPattern]:
        return [
            *(
                self.page(f"<int:job_id>/{verb.slug}/", verb.name, partial(self.verb_view, verb=verb, button=button))
                for verb, button in BUTTONS
            ),
            self.page("<int:job_id>/edit/", "edit", self.edit_view),
            self.page("<int:job_id>/progress/", "progress", self.progress_view),
            self.page("dashboard/", "dashboard", self.dashboard_view),
            self.page("doctor/", "doctor", self.doctor_view),
            self.page("metrics/", "metrics", self.metrics_view),
            *(self.page(page.path, page.name, partial(self.part_page_view, page=page)) for page in pages()),
            *super().get_urls(),
        ]

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list of jobs; by POST, what its actions do."""
        return super().changelist_view(request, extra_context)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        jobs: QuerySet[Job] = job_cells.with_cells(Job.objects.all())
        return jobs

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """All jobs: the list does the search, within its window."""
        return queryset, False

    def get_list_filter(self, request: HttpRequest | None = None) -> tuple[Any, ...]:
        """The filters, with those of parts after the first one."""
        of_parts = [each for part in consoles() if part.job_filters is not None for each in part.job_filters()]
        return (self.list_filter[0], *of_parts, *self.list_filter[1:])

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow no lookup in the address but the filters: another one could read the whole table."""
        return lookup in {FIRST, BEFORE, *(each.parameter_name for each in self.get_list_filter())}

    @admin.display(description=_("status"))
    def status_badge(self, job: Job) -> SafeString:
        return badge_of(job)

    @admin.display(description=_("job"))
    def job(self, job: Job) -> SafeString:
        return job_cells.task(job)

    @admin.display(description=_("arguments, last error"))
    def call_and_error(self, job: Any) -> SafeString:
        return job_cells.call_and_error(job)

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> SafeString:
        return job_cells.queue(job)

    @admin.display(description=_("attempts"))
    def attempts_made(self, job: Job) -> str:
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("when"))
    def when(self, job: Any) -> SafeString:
        return job_cells.when(job, job.now)
