"""The admin pages of archived jobs: the list, and the page of one job, where users can run it again.

These pages do not change the archive, and every view checks the user's permission itself.

The list looks like the list of jobs, but is sorted by the time of finishing, the latest first. A view reads it from the
end of an index in each partition, the newest partition first. With filters, a view reads one page of an index, or
searches a limited range of the index.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext

from ...conf import settings
from ...console.admin.jobs import job_cells
from ...console.admin.jobs.changelist import CappedPaginator, JobChangeList, Tab
from ...console.admin.jobs.filters import BEFORE, FIRST, FoundFilter, PeriodFilter, QueueFilter, StateFilter, TaskFilter
from ...console.admin.jobs.history import history_of
from ...console.admin.jobs.job_admin import JobAdmin
from ...console.admin.jobs.page import JobPage
from ...console.admin.ui.addresses import address_of
from ...console.admin.ui.cells import badge_of
from ...console.admin.ui.views import READ, ReadOnlyViews, guarded
from ...console.admin.verbs import log
from ...console.admin.verbs.one_job import log_entries
from ...console.job_states import LAST_FINISHED, Indexed, Order
from ...console.parts import sections_of, why_held_elsewhere
from ...console.periods import Period
from ...console.queues_and_workers import MAX_LINKED_NAME_LENGTH
from ...console.search import Search, is_id
from ...console.verbs.table import RUN_AGAIN, buttons
from ...models import FINISHED, ArchivedJob, Job, Status
from ...models.copies import ARGUMENT_TEXTS, call_of, copy_refusal, spec_of


@dataclass(frozen=True)
class ArchivedJobs(Indexed):
    """Archived jobs in a period: all jobs, the jobs of one task, or failed or discarded jobs."""

    task: str | None = None

    @classmethod
    def of(cls, status: str | None, task: str | None, period: Period) -> "ArchivedJobs":
        """Return the smallest indexed set that contains all jobs with this status and task. `None` means any."""
        has_status = task is None and status in (Status.FAILED, Status.DISCARDED)
        return cls(status=status if has_status else None, period=period, task=task)

    @property
    def order(self) -> Order:
        return LAST_FINISHED

    @property
    def time(self) -> str:
        return "finished_at"

    def jobs(self) -> Any:
        wanted = {"status": self.status, "task": self.task}
        conditions = {lookup: value for lookup, value in wanted.items() if value is not None}
        return ArchivedJob.objects.filter(self.period.of(self.time), **conditions).order_by(*self.order.by())


class StatusFilter(StateFilter):
    """The filter by status, shown as tabs above the list."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(status.value, status.label) for status in FINISHED]

    def value(self) -> str | None:
        """Return the chosen status; `None` if the URL has no valid status."""
        status = super().value()
        return status if status in FINISHED else None


class FinishedFilter(PeriodFilter):
    """The filter by the time when jobs finished."""

    def column_of(self, state: str | None) -> str:
        return "finished_at"


class ArchiveChangeList(JobChangeList):
    by_index: Any = None
    """The archive has no index for arguments."""

    @property
    def indexed(self) -> ArchivedJobs:
        return self._indexed(self.state)

    @property
    def command(self) -> str:
        """Empty, because no subcommand lists archived jobs."""
        return ""

    @property
    def elsewhere(self) -> Iterator[tuple[Any, str]]:
        for tab in self.tabs:
            if not tab.is_selected:
                yield tab.label, tab.address

    @cached_property
    def tabs(self) -> list[Tab]:
        all_jobs = Tab("", gettext("all"), self._address(None), self.state is None, None)
        return [all_jobs] + [
            Tab(status, status.label, self._address(status), status == self.state, self._count(status))
            for status in FINISHED
        ]

    def _count(self, state: str) -> Any:
        """Count the filtered jobs with this status; `None` if no index can count them."""
        if self.query or state == Status.COMPLETED or any(map(self._chosen, (FoundFilter, QueueFilter, TaskFilter))):
            return None
        return self._indexed(state).count()

    def _indexed(self, status: str | None) -> ArchivedJobs:
        return ArchivedJobs.of(status, self._chosen(TaskFilter), self.period)

    @property
    def _needs_a_window(self) -> bool:
        search = Search(self.query)
        is_found_by_id = search.names_an_id or self._chosen(FoundFilter) is not None
        return not is_found_by_id and (
            bool(search.words)
            or self._chosen(QueueFilter) is not None
            or self._chosen(StateFilter) != self.indexed.status
        )


def _job(job_id: str) -> Any:
    """Return the archived job with this id, annotated with the database's time, or `None`."""
    return ArchivedJob.objects.annotate(now=Now()).filter(pk=job_id).first() if is_id(job_id) else None


RUN_AGAIN_BUTTON = next(button for verb, button in buttons() if verb is RUN_AGAIN)


@admin.register(ArchivedJob)
class ArchivedJobAdmin(ReadOnlyViews):
    list_display = JobAdmin.list_display
    list_display_links = JobAdmin.list_display_links
    list_filter = (StatusFilter, FoundFilter, FinishedFilter, QueueFilter, TaskFilter)
    list_per_page = list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
    sortable_by = ()
    actions = None
    search_fields = JobAdmin.search_fields
    search_help_text = JobAdmin.search_help_text

    status_badge: Any = JobAdmin.status_badge
    job: Any = JobAdmin.job
    call_and_error: Any = JobAdmin.call_and_error
    queue: Any = JobAdmin.queue
    attempts_made: Any = JobAdmin.attempts_made
    when: Any = JobAdmin.when
    get_search_results: Any = JobAdmin.get_search_results
    search_view: Any = JobAdmin.search_view
    hand_over: Any = JobAdmin.hand_over

    class Media:
        css = {"all": ["django_skipqueue/admin.css"]}

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the archive in the admin's index only if the project has one."""
        return settings.has_archive and super().has_module_permission(request)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("search/", "search", self.search_view),
            self.page("<int:job_id>/run-again/", "run_again", self.run_again_view),
            *super().get_urls(),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ArchiveChangeList]:
        return ArchiveChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[ArchivedJob]:
        jobs: QuerySet[ArchivedJob] = job_cells.with_cells(ArchivedJob.objects.all())
        return jobs

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Accept only the lookups of the filters in the URL."""
        filters = (StatusFilter, FoundFilter, QueueFilter, TaskFilter)
        return lookup in {FIRST, BEFORE, *(filter.parameter_name for filter in filters)}

    @guarded(*READ)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show an archived job."""
        job = _job(object_id)
        if job is None:
            return self._redirect_missing(request, object_id)
        content = {
            "page": JobPage(job, job.now),
            "note": gettext("This job was moved from the job table to the archive after its retention."),
            "sections": sections_of(job),
            "buttons": [(RUN_AGAIN_BUTTON, self.address("run_again", job.pk))]
            if self._may_run_again(request, job)
            else [],
            "others": self.address("changelist", query={"task": job.task})
            if len(job.task) <= MAX_LINKED_NAME_LENGTH
            else "",
            "history": self.address("history", job.pk),
        }
        return self.show(request, "job/page.html", job, content | (extra_context or {}), title=str(job))

    @guarded()
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what users did to the job, from its row and from Django's log."""
        job = _job(object_id)
        if job is None:
            return self._redirect_missing(request, object_id)
        content = {"job": job, "entries": history_of(job)} | (extra_context or {})
        title = gettext("History: %(job)s") % {"job": job}
        return self.show(request, "job/object_history.html", job, content, title=title)

    @guarded()
    def run_again_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        job = _job(str(job_id))
        if not self._may_run_again(request, job):
            raise PermissionDenied
        if job is None:
            return self._redirect_missing(request, str(job_id))
        if request.method != "POST" or "confirmed" not in request.POST:
            question = str(RUN_AGAIN_BUTTON.question_title) % {"id": job.pk}
            return self.ask(
                request,
                title=gettext("%(order)s?") % {"order": question},
                subject=question,
                explanation=RUN_AGAIN_BUTTON.hint,
                sample=[(job, badge_of(job))],
                target=self.address("run_again", job.pk),
                back=self.address("change", job.pk),
            )
        if reason := why_held_elsewhere(job):
            self.message_user(request, reason, messages.WARNING)
            return HttpResponseRedirect(self.address("change", job.pk))
        original: Any = ArchivedJob.objects.annotate(**ARGUMENT_TEXTS).get(pk=job.pk, finished_at=job.finished_at)
        copy = Job.objects.insert(spec_of(original), call_of(original, original.args_text, original.kwargs_text))
        values = {"id": job.pk, "copy": copy.pk}
        if not copy.created:
            message = gettext(
                "Nothing was done, because the unfinished job %(copy)s holds the unique key of job %(id)s."
            )
            self.message_user(request, message % values, messages.WARNING)
            return HttpResponseRedirect(self.address("change", job.pk))
        log.record(request, log_entries(RUN_AGAIN, job, copy.pk), verb=RUN_AGAIN)
        self.message_user(request, str(RUN_AGAIN_BUTTON.done) % values, messages.SUCCESS)
        return HttpResponseRedirect(address_of("job_change", copy.pk))

    def _redirect_missing(self, request: HttpRequest, job_id: str) -> HttpResponse:
        message = gettext("There is no job %(id)s in the archive.") % {"id": job_id}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    def _may_run_again(self, request: HttpRequest, job: ArchivedJob | None) -> bool:
        allowed = request.user.has_perm(f"{self.opts.app_label}.{RUN_AGAIN.permission}_job")
        return allowed and not (job and copy_refusal(job))
