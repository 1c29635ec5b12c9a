"""The views that change jobs: the buttons of a job, the question before a verb is applied, and what a worker applies.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every change is logged. A job that
waits is taken back from the workers before the server applies its verb itself.
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
        form = VerbForm(verb, request.POST, job=job)
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
        """Run a finished job again with other arguments."""
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return self.redirect_job_missing(request, str(job_id))
        fits = job.status in RUN_AGAIN.statuses
        reason = copy_refusal(job) if fits else misfit_message(EDIT, job)
        if not reason and not (isinstance(job.args, list) and isinstance(job.kwargs, dict)):  # written by hand
            text = gettext("The arguments of job %(id)s are no list and no object, so they cannot be edited.")
            reason = text % {"id": job.pk}
        if reason:
            return self._refuse(request, job, reason)
        try:
            task = registry.get(job.task)
        except UnknownTask:
            reason = gettext("The task %(task)s is not registered in this process, so its arguments cannot be checked.")
            return self._refuse(request, job, reason % {"task": shorten(job.task, MESSAGE_NAME_LIMIT)})
        form = EditForm(job, task, request.POST)
        if form.is_valid() and (made := form.enqueue()):
            if made.created:
                return self._show_made(request, job, made)
            form.add_error(None, why_existing(job, made))
        return self._ask_for_one(request, EDIT, job, form, target=self.address("edit", job.pk))

    @guarded(*READ, may=lambda self, request: self.may(request, DELETE))
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether to delete one job. The answer goes to the list's action: jobs are deleted in one way only."""
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
        """Ask whether to change the selected jobs; the answer is posted to `target`, or to where the question was.

        `is_for_workers`: a worker changes the jobs, because there are, or may be, too many for a request.
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
        """Enqueue a job that searches all of a list, whose query the address has, and show its progress.

        The page of the progress is for users who may view jobs, whichever list the jobs are from.
        """
        if not self.admin_site.get_model_admin(Job).has_view_permission(request):
            raise PermissionDenied
        if served := queue_with_workers():
            return self.hand_over(request, served, action=SEARCH)
        self.message_user(request, gettext("No worker is alive that could search everything."), messages.WARNING)
        return HttpResponseRedirect(self.address("changelist", query=request.GET.urlencode()))

    def hand_over(self, request: HttpRequest, queue_name: str, /, **values: Any) -> HttpResponse:
        """Enqueue a job that goes through all of this list, and show its progress."""
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
        """Show how far the job of a bulk action is; a POST cancels it. What it has done stays done."""
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
            assert CANCEL.button is not None  # noqa: S101 (a verb of the table)
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
        """Apply the verb, and say what was done. Returns the id of the job to show next."""
        result = apply_to_one(verb, button, job, instruction)
        log.record(request, result.log_entries, verb=verb)
        self.message_user(request, result.message, messages.SUCCESS if result.log_entries else messages.WARNING)
        return result.shown_id

    def _show_made(self, request: HttpRequest, job: Job, made: Job) -> HttpResponse:
        values = {"id": job.pk, "copy": made.pk}
        entry = gettext("Run again with other arguments as job %(copy)s.") % values
        log.record(request, [LoggedChange(job.pk, str(job), entry)], verb=RUN_AGAIN)
        with using_database(made._state.db or settings.database):
            entry = gettext("Made from job %(id)s with other arguments.") % values
            log.record(request, [LoggedChange(made.pk, str(made), entry)], verb=RUN_AGAIN)
            page = self.address("change", made.pk)
        self.message_user(request, str(EDIT.done) % values, messages.SUCCESS)
        return HttpResponseRedirect(page)

    def _refuse(self, request: HttpRequest, job: Job, reason: str) -> HttpResponse:
        self.message_user(request, reason, messages.WARNING)
        return HttpResponseRedirect(self.address("change", job.pk))


BY_HAND = "by_hand"
"""The form field with the id of a job that waits for a worker, and whose verb the server is to apply."""


def discard_bulk_job(job_id: int, verb: Verb, query: str, instruction: Instruction) -> bool:
    """Discard a job that waits for a worker to apply the verb to this list. Returns whether it still waited."""
    job = Job.objects.filter(pk=job_id, task=BULK_TASK).first()
    bulk = BulkAction.of(job) if job else None
    is_the_same = bulk is not None and (bulk.action, bulk.query) == (verb.action_name, query)
    return is_the_same and bool(Store.default().discard([job_id], by=instruction.user))
