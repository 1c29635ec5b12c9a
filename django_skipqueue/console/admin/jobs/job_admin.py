"""The admin of jobs: the columns of the list, its filters and search, and its actions.

Jobs cannot be added or edited here. The list only reads the columns that it shows. The actions are the verbs that have
an action. Many jobs are only changed after a confirmation. The list offers no action that would skip all of its jobs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....models import Job, Status
from ...job_states import STATES, status_of
from ...parts import consoles, pages
from ...search import is_id
from ...verbs.table import CORE_VERBS, buttons, verbs, verbs_by_action
from ...verbs.verb import Instruction, Verb
from ..bulk import queue_with_workers
from ..ui.cells import arguments, badge_of, queue_link, shortened, task_link
from ..ui.time_limit import WorkAfterTransaction
from ..ui.views import refreshing
from ..verbs import log, many_jobs
from ..verbs.many_jobs import Selection
from ..verbs.one_job import MOST_UNTYPED, VerbForm, log_entries
from . import job_cells
from .changelist import IndexedPaginator, JobChangeList
from .filters import (
    BEFORE,
    FIRST,
    CauseFilter,
    FoundFilter,
    PeriodFilter,
    QueueFilter,
    RunsFilter,
    StateFilter,
    TaskFilter,
    TimeFilter,
)
from .verb_views import BY_HAND, VerbViews, discard_bulk_job

CHANGELIST = "skipqueue_changelist"
"""The request's attribute that contains the change list."""


def _as_admin_action(verb: Verb) -> Callable[..., HttpResponse]:
    def run(model_admin: "JobAdmin", request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return model_admin.ask_or_apply(request, verb, queryset)

    run.__name__ = verb.action_name
    return admin.action(run, description=verb.action.label)


@admin.register(Job)
class JobAdmin(VerbViews):
    list_display = ("status_badge", "job", "call_and_error", "queue", "attempts_made", "when")
    list_display_links = None
    list_filter = (StateFilter, FoundFilter, CauseFilter, RunsFilter, QueueFilter, TaskFilter, TimeFilter, PeriodFilter)
    list_per_page = list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = IndexedPaginator
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _(
        "An id (#42), an argument (payment_id=42, order.id=42), or part of a task, error, value or queue. "
        "Several words must all match."
    )
    actions: Sequence[Callable[..., Any] | str] = tuple(map(_as_admin_action, CORE_VERBS))

    class Media:
        css = {"all": ["django_skipqueue/admin.css"]}

    def __init__(self, model: type[Job], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if admin_site.index_template is None:  # a project's own index page has its own `{% queue_notices %}`
            admin_site.index_template = "admin/django_skipqueue/index.html"

    def get_urls(self) -> list[URLPattern]:
        return [
            *(
                self.page(f"<int:job_id>/{verb.slug}/", verb.name, partial(self.verb_view, verb=verb, button=button))
                for verb, button in buttons()
            ),
            self.page("<int:job_id>/edit/", "edit", self.edit_view),
            self.page("<int:job_id>/progress/", "progress", self.progress_view),
            self.page("search/", "search", self.search_view),
            self.page("dashboard/", "dashboard", self.dashboard_view),
            self.page("task/", "task", self.task_view),
            self.page("doctor/", "doctor", self.doctor_view),
            self.page("metrics/", "metrics", self.metrics_view),
            *(self.page(page.path, page.name, partial(self.part_page_view, page=page)) for page in pages()),
            *super().get_urls(),
        ]

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the job list, or run an action on POST."""
        return super().changelist_view(request, extra_context)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        jobs: QuerySet[Job] = job_cells.with_cells(Job.objects.all())
        return jobs

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Return all jobs, because the change list itself searches the part of the list that is shown."""
        return queryset, False

    def get_list_filter(self, request: HttpRequest | None = None) -> tuple[Any, ...]:
        """Return the filters. The parts' filters come after the first one."""
        filters_of_parts = [
            part_filter for part in consoles() if part.job_filters is not None for part_filter in part.job_filters()
        ]
        return (self.list_filter[0], *filters_of_parts, *self.list_filter[1:])

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only the filters' lookups in the URL, because another lookup could read the whole table."""
        return lookup in {FIRST, BEFORE, *(filter.parameter_name for filter in self.get_list_filter())}

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that the user may apply, and that can change jobs of this list's state."""
        state = request.GET.get(StateFilter.parameter_name, "")
        status = status_of(state) if state in STATES else None
        # Django 6.1 passes a location.
        location = {} if action_location is None else {"action_location": action_location}

        def is_offered(verb: Verb) -> bool:
            return (status is None or verb.is_offered_for(status)) and self.may(request, verb)

        verbs_by_name = verbs_by_action()
        actions = super().get_actions(request, **location)
        for verb in verbs() if actions else ():  # the verbs of parts, which may be installed after this module
            actions.setdefault(verb.action_name, self.get_action(_as_admin_action(verb)))
        return {
            name: action
            for name, action in actions.items()
            if name not in verbs_by_name or is_offered(verbs_by_name[name])
        }

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the change list. Also attach it to the request, because Django passes only the jobs to actions."""
        changelist: Any = super().get_changelist_instance(request)
        setattr(request, CHANGELIST, changelist)
        return changelist

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run the chosen action. First drop posted values that are not valid ids, because Django would raise."""
        posted: Any = request.POST.copy()
        chosen_ids = [value for value in posted.getlist(helpers.ACTION_CHECKBOX_NAME) if is_id(value)]
        posted.setlist(helpers.ACTION_CHECKBOX_NAME, chosen_ids)
        request.POST = posted
        return super().response_action(request, queryset, *args, **kwargs)

    def ask_or_apply(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Job]) -> HttpResponse:
        selection = _selection(request, queryset)
        queue_name = queue_with_workers() if selection.ids is None and _is_large(selection) else None
        if selection.is_part and queue_name is None:
            # Without a worker, only the searched window is changed, so no estimate for the whole list is needed.
            selection = replace(selection, expected=int)
        number = _large_number(request, selection)
        form = VerbForm(verb, request.POST, number=number)
        if not form.is_valid():
            return self.ask_for_many(request, verb, selection, form, is_for_workers=queue_name is not None)
        instruction = form.instruction(request.user.get_username())
        bulk_job_id = request.POST.get(BY_HAND, "")
        if is_id(bulk_job_id) and not discard_bulk_job(int(bulk_job_id), verb, request.GET.urlencode(), instruction):
            self.message_user(request, gettext("A worker has already begun."), messages.WARNING)
            return HttpResponseRedirect(self.address("progress", bulk_job_id))
        if queue_name is not None and not bulk_job_id:
            return self.hand_over(
                request,
                queue_name,
                action=verb.action_name,
                number=number,
                is_lower_bound=selection.total.is_capped,
                answers=form.answers(),
            )
        # The jobs are changed after the view's transaction, in batches that are committed one by one.
        return WorkAfterTransaction(partial(self._apply_now, request, verb, selection, instruction))

    def _apply_now(
        self, request: HttpRequest, verb: Verb, selection: Selection, instruction: Instruction
    ) -> HttpResponse:
        chosen_jobs = Job.objects.only("pk", "task").in_bulk(selection.ids or ())
        tally = many_jobs.apply(verb, selection, instruction)
        message = many_jobs.message_of(verb, tally)
        if selection.ids is None:
            if tally.changed:
                log.record_all(request, verb, message, instruction.reason)
        else:
            entries = (
                entry
                for pk, shown_id in tally.shown_ids.items()
                for entry in log_entries(verb, chosen_jobs[pk], shown_id)
            )
            log.record(request, entries, verb=verb, reason=instruction.reason)
        level = messages.SUCCESS if tally.changed and tally.left is None else messages.WARNING
        self.message_user(request, message, level)
        return HttpResponseRedirect(request.get_full_path())

    @admin.display(description=_("status"))
    def status_badge(self, job: Job) -> SafeString:
        return badge_of(job)

    @admin.display(description=_("job"))
    def job(self, job: Job) -> SafeString:
        """Show the function's name with a link to the job, the id, and the module with a link to the task."""
        module, _, function = job.task.rpartition(".")
        return format_html(
            '<a href="{}"><span class="skipqueue-name">{}</span></a>'
            ' <span class="skipqueue-detail" title="{}">#{}{}</span>',
            self.address("change", job.pk),
            shortened(function or job.task),
            shortened(job.task),
            job.pk,
            format_html(" · {}", task_link(job.task, module)) if module and function else "",
        )

    @admin.display(description=_("arguments, last error"))
    def call_and_error(self, job: Any) -> SafeString:
        """Show the arguments. Below them, show the first line of the last error, unless the job has completed."""
        masked_call = job_cells.called(job.task, job.args_text, job.kwargs_text)
        error = "" if job.status == Status.COMPLETED else masked_call.text(job.last_error).strip().partition("\n")[0]
        return format_html(
            '<span class="skipqueue-call" title="{0}">{0}</span>{1}',
            arguments(job.task, masked_call),
            format_html('<span class="skipqueue-error" title="{0}">{0}</span>', shortened(error)) if error else "",
        )

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> SafeString:
        return format_html(
            '<span class="skipqueue-queue" title="{}">{}</span>', shortened(job.queue_name), queue_link(job.queue_name)
        )

    @admin.display(description=_("attempts"))
    def attempts_made(self, job: Job) -> str:
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("when"))
    def when(self, job: Any) -> SafeString:
        return job_cells.when(job, job.now)


def _selection(request: HttpRequest, matching: QuerySet[Job]) -> Selection:
    """Return the ticked jobs; if the user selected all jobs, return `matching`, which may be a part of all jobs."""
    if request.POST.get("select_across") != "1":
        return Selection.by_hand(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
    changelist = getattr(request, CHANGELIST)
    is_part = changelist.partly_searched is not None
    return Selection(matching, is_part=is_part, listed=changelist.total, expected=changelist.expected)


def _is_large(selection: Selection) -> bool:
    return (selection.listed or selection.total).found > (0 if selection.is_part else MOST_UNTYPED)


def _large_number(request: HttpRequest, selection: Selection) -> int:
    """Return the number that the user has to type, or 0 for few jobs. A number that was shown stays valid."""
    if not _is_large(selection):
        return 0
    posted_number = request.POST.get("number", "")
    most_untyped = 0 if selection.is_part else MOST_UNTYPED
    return int(posted_number) if is_id(posted_number) and int(posted_number) > most_untyped else selection.total.shown
