"""The views that change jobs: a job's buttons, the confirmation pages, and the progress of bulk actions.

Every view checks the user's permission itself, a GET changes nothing, and every change is logged. Before the web server
applies a bulk action itself, it discards the background job that waits for a worker.
"""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseNotFound,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ....conf import settings, using_database
from ....exceptions import UnknownTask
from ....jobs.registry import registry
from ....models import Job
from ....models.copies import BULK_TASK, copy_refusal
from ....queue.store import Store
from ....values.codec import shorten
from ...parts import why_existing
from ...verbs.table import CANCEL, DELETE, RUN_AGAIN
from ...verbs.verb import Button, Instruction, Verb
from ..bulk import SEARCH, BulkAction, queue_with_workers
from ..ui.addresses import address_of
from ..ui.cells import badge_of
from ..ui.views import READ, READ_OR_CHANGE, guarded
from ..verbs import log, many_jobs
from ..verbs.edit import EDIT, EditForm
from ..verbs.many_jobs import SAMPLE_SIZE, Selection, Summary
from ..verbs.one_job import MESSAGE_NAME_LIMIT, LoggedChange, VerbForm, apply_to_one, misfit_message
from .changelist import WINDOW_VAR
from .filters import FoundFilter
from .progress_page import ProgressPage, SearchPage
from .views import JobViews


class VerbViews(JobViews):
    def verb_view(self, request: HttpRequest, job_id: int, *, verb: Verb, button: Button) -> HttpResponse:
        methods = READ_OR_CHANGE if button.asks else ("POST",)
        if request.method not in methods:
            return HttpResponseNotAllowed(methods)
        if not self.may(request, verb):
            raise PermissionDenied
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return self.redirect_job_missing(request, str(job_id))
        button, page = button.for_job(job), self.address("change", job.pk)
        form = VerbForm(verb, request.POST, job=job, initial_values=request.GET)
        if not button.asks or form.is_valid():
            user = request.user.get_username()
            instruction = form.instruction(user) if button.asks else Instruction(user)
            shown_id = self._apply_to_one(request, verb, button, job, instruction)
            return HttpResponseRedirect(self.address("change", shown_id))
        if not verb.fits(job):
            self.message_user(request, misfit_message(button, job), messages.WARNING)
            return HttpResponseRedirect(page)
        return self._ask_for_one(
            request, button, job, form, target=self.address(verb.name, job.pk), is_dangerous=verb.is_dangerous
        )

    @guarded(*READ_OR_CHANGE, may=lambda self, request: self.may(request, RUN_AGAIN))
    def edit_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """Let the user run a finished job again with other arguments."""
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return self.redirect_job_missing(request, str(job_id))
        is_finished = job.status in RUN_AGAIN.statuses
        reason = copy_refusal(job) if is_finished else misfit_message(EDIT, job)
        if not reason and not (
            isinstance(job.args, list) and isinstance(job.kwargs, dict)
        ):  # someone edited the row by hand
            text = gettext("The arguments of job %(id)s are neither a list nor an object, so they cannot be edited.")
            reason = text % {"id": job.pk}
        if reason:
            return self._refuse(request, job, reason)
        try:
            task = registry.get(job.task)
        except UnknownTask:
            reason = gettext("This process does not know the task %(task)s, so it cannot check the arguments.")
            return self._refuse(request, job, reason % {"task": shorten(job.task, MESSAGE_NAME_LIMIT)})
        form = EditForm(job, task, request.POST)
        if form.is_valid() and (copy := form.enqueue()):
            if copy.created:
                return self._show_copy(request, job, copy)
            form.add_error(None, why_existing(job, copy))
        return self._ask_for_one(request, EDIT, job, form, target=self.address("edit", job.pk))

    @guarded(*READ, may=lambda self, request: self.may(request, DELETE))
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether to delete one job. The answer is posted to the list's delete action."""
        selection = Selection.by_hand([object_id])
        if not selection.jobs.exists():
            return self.redirect_job_missing(request, object_id)
        return self.ask_for_many(request, DELETE, selection, VerbForm(DELETE), target=self.address("changelist"))

    def ask_for_many(
        self,
        request: HttpRequest,
        verb: Verb,
        selection: Selection,
        form: VerbForm,
        *,
        target: str = "",
        is_for_workers: bool = False,
    ) -> HttpResponse:
        """Ask whether to change the selected jobs.

        The answer is posted to `target`, by default to the same URL. `is_for_workers`: a worker changes the jobs,
        because there may be too many for one request.
        """
        summary = Summary.of(selection, verb, is_lower_bound=selection.is_part and is_for_workers)
        sample = selection.sample() if summary.count.found <= SAMPLE_SIZE else []
        return self.ask(
            request,
            title=many_jobs.question_of(verb, summary),
            subject=many_jobs.question_title_of(verb, summary),
            explanation=verb.action.full_explanation,
            summary=summary,
            sample=[(job, badge_of(job)) for job in sample],
            can_be_done=summary.can_change_any,
            hidden=[("action", verb.action_name), ("number", form.number), *selection.posted()],
            takes_long=bool(form.number),
            is_part=selection.is_part,
            form=form,
            is_dangerous=verb.is_dangerous,
            is_for_workers=is_for_workers,
            time_limit=round(many_jobs.TIME_LIMIT),
            target=target or request.get_full_path(),
            back=request.get_full_path(),
        )

    @guarded("POST")
    def search_view(self, request: HttpRequest) -> HttpResponse:
        """Enqueue a job that searches the whole list for the URL's query, and show its progress.

        The user needs the permission to view jobs, because the page with the progress needs it for every list.
        """
        if not self.admin_site.get_model_admin(Job).has_view_permission(request):
            raise PermissionDenied
        if queue_name := queue_with_workers():
            return self.hand_over(request, queue_name, action=SEARCH)
        self.message_user(request, gettext("There is no live worker that could search everything."), messages.WARNING)
        return HttpResponseRedirect(self.address("changelist", query=request.GET.urlencode()))

    def hand_over(self, request: HttpRequest, queue_name: str, /, **values: Any) -> HttpResponse:
        """Enqueue a background job that changes or searches the jobs of this whole list, and show its progress."""
        query = request.GET.copy()
        query.pop(WINDOW_VAR, None)
        bulk = BulkAction(
            query=query.urlencode(),
            site=self.admin_site.name,
            model=str(self.opts.model_name),
            user_id=request.user.pk,
            user=request.user.get_username(),
            **values,
        )
        return HttpResponseRedirect(address_of("job_progress", bulk.enqueue(queue_name).pk, site=bulk.site))

    @guarded(*READ_OR_CHANGE)
    def progress_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """Show a bulk action's progress. A POST cancels the action, but does not undo its changes."""
        job: Any = Job.objects.annotate(now=Now()).filter(pk=job_id, task=BULK_TASK).first()
        is_fragment = "fragment" in request.GET
        if job is None:
            return HttpResponseNotFound() if is_fragment else self.redirect_job_missing(request, str(job_id))
        bulk = BulkAction.of(job)
        if bulk is None:
            raise Http404
        if not bulk.may_be_viewed(self.admin_site, request):
            raise PermissionDenied
        may_stop = self.may(request, CANCEL) or bulk.user_id == request.user.pk
        if request.method == "POST":
            if not may_stop:
                raise PermissionDenied
            assert CANCEL.button is not None  # noqa: S101 (this verb always has a button)
            self._apply_to_one(request, CANCEL, CANCEL.button, job, Instruction(request.user.get_username()))
            return HttpResponseRedirect(self.address("progress", job.pk))
        content: dict[str, Any] = {
            "content": "admin/django_skipqueue/job/progress.html",
            "page": (SearchPage if bulk.action == SEARCH else ProgressPage)(job, job.now, bulk),
            "list": address_of(f"{bulk.model}_changelist", query=bulk.query, site=self.admin_site.name),
            "job": self.address("change", job.pk),
            "stop": self.address("progress", job.pk),
            "may_stop": may_stop,
            "found": address_of(
                f"{bulk.model}_changelist", query={FoundFilter.parameter_name: job.pk}, site=self.admin_site.name
            ),
            "may_apply": bulk.is_allowed(self, request),
        }
        if is_fragment:
            return TemplateResponse(request, content["content"], content)
        title = gettext("Progress of job %(id)s") % {"id": job.pk}
        return self.show(request, "job/page.html", title, content, title=title)

    def _ask_for_one(
        self, request: HttpRequest, button: Button, job: Job, form: Any, *, target: str, is_dangerous: bool = False
    ) -> HttpResponse:
        subject = str(button.question_title) % {"id": job.pk}
        return self.ask(
            request,
            title=gettext("%(order)s?") % {"order": subject},
            subject=subject,
            explanation=button.hint,
            sample=[(job, badge_of(job))],
            form=form,
            is_dangerous=is_dangerous,
            target=target,
            back=self.address("change", job.pk),
        )

    def _apply_to_one(
        self, request: HttpRequest, verb: Verb, button: Button, job: Job, instruction: Instruction
    ) -> int:
        """Apply the verb, and show a message with the result. Return the id of the job to show next."""
        result = apply_to_one(verb, button, job, instruction)
        log.record(request, result.log_entries, verb=verb)
        self.message_user(request, result.message, messages.SUCCESS if result.log_entries else messages.WARNING)
        return result.shown_id

    def _show_copy(self, request: HttpRequest, job: Job, copy: Job) -> HttpResponse:
        values = {"id": job.pk, "copy": copy.pk}
        log_message = gettext("Run again with other arguments as job %(copy)s.") % values
        log.record(request, [LoggedChange(job.pk, str(job), log_message)], verb=RUN_AGAIN)
        with using_database(copy._state.db or settings.database):
            log_message = gettext("Made from job %(id)s with other arguments.") % values
            log.record(request, [LoggedChange(copy.pk, str(copy), log_message)], verb=RUN_AGAIN)
            page = self.address("change", copy.pk)
        self.message_user(request, str(EDIT.done) % values, messages.SUCCESS)
        return HttpResponseRedirect(page)

    def _refuse(self, request: HttpRequest, job: Job, reason: str) -> HttpResponse:
        self.message_user(request, reason, messages.WARNING)
        return HttpResponseRedirect(self.address("change", job.pk))


BY_HAND = "by_hand"
"""The form field with the id of a waiting background job whose action the web server shall perform instead."""


def discard_bulk_job(job_id: int, verb: Verb, query: str, instruction: Instruction) -> bool:
    """Discard the background job of this action if it still waits for a worker. Return whether it was discarded."""
    job = Job.objects.filter(pk=job_id, task=BULK_TASK).first()
    bulk = BulkAction.of(job) if job else None
    is_same_action = bulk is not None and (bulk.action, bulk.query) == (verb.action_name, query)
    return is_same_action and bool(Store.default().discard([job_id], by=instruction.user))
