"""Jobs in the admin: the list, and what may be done with many of them.

Invariant: jobs are never added or edited here, and nothing is done to many of them before a question has been answered.
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left, Now
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Job
from . import cells, history
from .actions import Action, Cancel, Delete, Discard, Retry
from .counts import CappedPaginator
from .filters import QueueFilter, StateFilter, TaskFilter, TimeFilter
from .job_list import JobChangeList
from .job_views import JobViews
from .questions import Question, asked
from .selection import Selection, is_id
from .states import state_of


@admin.register(Job)
class JobAdmin(JobViews):
    """The queue, for the people who run it."""

    list_display = ("status_badge", "job", "call_and_error", "queue", "attempts_made", "when")
    list_display_links = ("job",)
    list_filter = (StateFilter, QueueFilter, TaskFilter, TimeFilter)
    list_per_page = list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _(
        "An id (42), a part of a task's name (receipt), or an argument (payment_id=42). Several words must all match."
    )
    actions = ("retry_selected", "discard_selected", "cancel_selected", "delete_selected")

    class Media:
        css = {"all": ["django_skipqueue/admin.css"]}

    def __init__(self, model: type[Job], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if admin_site.index_template is None:  # a project's own says itself where `{% queue_notices %}` stands
            admin_site.index_template = "admin/django_skipqueue/index.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        """The list that stays within an index."""
        return JobChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Jobs without what only their own page shows, and with no more of the arguments than fits into a cell."""
        args, kwargs = (Left(Cast(name, TextField()), cells.CELL_LIMIT * 4) for name in ("args", "kwargs"))
        jobs = Job.objects.defer("args", "kwargs", "result", "errors", "metadata")
        return jobs.annotate(now=Now(), args_text=args, kwargs_text=kwargs)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """All jobs: what is searched for is looked for by the list, which knows where to look."""
        return queryset, False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Only the filters filter: any other lookup in the address could read the whole table."""
        return lookup in {each.parameter_name for each in self.list_filter}

    @admin.display(description=_("status"))
    def status_badge(self, job: Job) -> SafeString:
        """The state as a word and a colour."""
        return cells.badge(state_of(job))

    @admin.display(description=_("job"))
    def job(self, job: Job) -> SafeString:
        """The task and the id."""
        return cells.task(job)

    @admin.display(description=_("arguments, last error"))
    def call_and_error(self, job: Any) -> SafeString:
        """The arguments, short, and the first line of the last error while it matters."""
        return cells.call_and_error(job)

    @admin.display(description=_("queue"))
    def queue(self, job: Job) -> str:
        """The queue."""
        return cells.shortened(job.queue_name)

    @admin.display(description=_("attempts"))
    def attempts_made(self, job: Job) -> str:
        """How many of how many."""
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("when"))
    def when(self, job: Any) -> SafeString:
        """What happened last, or will next."""
        return cells.when(job, job.now)

    # Actions on the list

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run the chosen action, without what was sent as an id and is none: Django fails at that."""
        posted: Any = request.POST.copy()
        chosen = [each for each in posted.getlist(helpers.ACTION_CHECKBOX_NAME) if is_id(each)]
        posted.setlist(helpers.ACTION_CHECKBOX_NAME, chosen)
        request.POST = posted
        return super().response_action(request, queryset, *args, **kwargs)

    @admin.action(permissions=["retry"], description=_("Retry selected %(verbose_name_plural)s"))
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Put the failed and discarded ones back into their queues."""
        return self._act(request, Retry(), queryset)

    @admin.action(permissions=["discard"], description=_("Discard selected %(verbose_name_plural)s"))
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Finish the scheduled and queued ones without running them."""
        return self._act(request, Discard(request.user.get_username()), queryset)

    @admin.action(permissions=["cancel"], description=_("Cancel selected %(verbose_name_plural)s"))
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Discard those that are not finished, and interrupt those that run."""
        return self._act(request, Cancel(request.user.get_username()), queryset)

    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Remove those that are not running."""
        return self._act(request, Delete(), queryset)

    def _act(self, request: HttpRequest, action: Action, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask first; then do it."""
        if request.POST.get("select_across") == "1":
            selection = Selection.all_matching(queryset)
        else:
            selection = Selection.by_hand(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
        question = asked(Question, request)
        if not question.is_valid():
            return self.ask(request, action, selection, question)
        self._do(request, action, selection)
        return None

    def _do(self, request: HttpRequest, action: Action, selection: Selection) -> None:
        names = history.names_of(selection.ids or ())
        tally, changed = action.run(selection)
        if selection.ids is None and tally.changed:
            history.record_many(request, gettext("all matching jobs"), action.told(tally), flag=action.flag)
        else:
            history.record(request, {pk: names[pk] for pk in changed}, str(action.logged), flag=action.flag)
        level = messages.SUCCESS if tally.changed and tally.is_complete else messages.WARNING
        self.message_user(request, action.told(tally), level)
