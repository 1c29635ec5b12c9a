"""The views behind the buttons of a job, and the question before a verb is applied to one job or to many.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every change is logged.
"""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ....models import Job
from ..ui.cells import badge_of
from ..verbs import log, many_jobs, one_job
from ..verbs.forms import Instruction, ReasonForm
from ..verbs.selection import SAMPLE, Selection, Summary
from ..verbs.table import ACTIONS, DELETE
from ..verbs.verb import Action, Button, Verb
from .views import JobViews


class VerbViews(JobViews):
    def verb_view(self, request: HttpRequest, job_id: int, *, verb: Verb, button: Button) -> HttpResponse:
        methods = ["GET", "HEAD", "POST"] if button.asks else ["POST"]
        if request.method not in methods:
            return HttpResponseNotAllowed(methods)
        if not self.may(request, verb):
            raise PermissionDenied
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return self.redirect_job_missing(request, str(job_id))
        button = button.for_job(job)
        if not button.asks:
            return self._apply(request, verb, button, job, Instruction(request.user.get_username()))
        form = verb.form(request.POST, job=job)
        if form.is_valid():
            return self._apply(request, verb, button, job, form.instruction(request.user.get_username()))
        return self._ask_for_one(request, verb, button, job, form)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether to delete one job. The answer goes to the list's action: jobs are deleted in one way only."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.may(request, DELETE):
            raise PermissionDenied
        selection = Selection.by_hand([object_id])
        if not selection.jobs.exists():
            return self.redirect_job_missing(request, object_id)
        verb, action = ACTIONS[DELETE.action_name]
        return self.ask_for_many(request, verb, action, selection, verb.form(), target=self.address("changelist"))

    def ask_for_many(
        self,
        request: HttpRequest,
        verb: Verb,
        action: Action,
        selection: Selection,
        form: ReasonForm,
        *,
        target: str = "",
        is_for_workers: bool = False,
    ) -> HttpResponse:
        """Ask whether to change the selected jobs; the answer is posted to `target`, or to where the question was.

        `is_for_workers`: they are so many, or may be, that a worker changes them.
        """
        summary = Summary.of(selection, verb.statuses, is_least=selection.is_part and is_for_workers)
        return self.ask(
            request,
            title=many_jobs.question_of(action, summary),
            subject=many_jobs.question_title_of(action, summary),
            explanation=action.full_explanation,
            summary=summary,
            sample=_with_badges(selection.sample()) if summary.count.found <= SAMPLE else [],
            can_be_done=summary.can_change_any,
            hidden=[("action", verb.action_name), ("number", form.number), *selection.posted()],
            takes_long=bool(form.number),
            is_part=selection.is_part,
            form=form,
            is_dangerous=verb.is_dangerous,
            is_for_workers=is_for_workers,
            time_limit=round(many_jobs.TIME_LIMIT),
            target=target,
            back=request.get_full_path(),
        )

    def _ask_for_one(
        self, request: HttpRequest, verb: Verb, button: Button, job: Job, form: ReasonForm
    ) -> HttpResponse:
        """Ask whether to apply the verb to this job, unless its status does not allow it."""
        page = self.address("change", job.pk)
        if not verb.fits(job):
            self.message_user(request, one_job.does_not_fit(button, job), messages.WARNING)
            return HttpResponseRedirect(page)
        question_title = str(button.question_title) % {"id": job.pk}
        return self.ask(
            request,
            title=gettext("%(order)s?") % {"order": question_title},
            subject=question_title,
            explanation=button.hint,
            sample=_with_badges([job]),
            can_be_done=True,
            form=form,
            is_dangerous=verb.is_dangerous,
            target=self.address(verb.name, job.pk),
            back=page,
        )

    def ask(self, request: HttpRequest, *, title: str, subject: str, **context: Any) -> HttpResponse:
        """Show a question; `subject` is also the text of the button below it."""
        context |= self.context(request, subject, title=title)
        return TemplateResponse(request, "admin/django_skipqueue/job/confirm.html", context)

    def _apply(
        self, request: HttpRequest, verb: Verb, button: Button, job: Job, instruction: Instruction
    ) -> HttpResponse:
        result = one_job.apply(verb, button, job, instruction)
        for pk, name, entry in result.log_entries:
            log.record(request, {pk: name}, entry, flag=verb.log_flag)
        self.message_user(request, result.message, messages.SUCCESS if result.log_entries else messages.WARNING)
        return HttpResponseRedirect(self.address("change", result.shown_id))


def _with_badges(jobs: list[Job]) -> list[tuple[Job, SafeString]]:
    return [(job, badge_of(job)) for job in jobs]
