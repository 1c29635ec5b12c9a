"""The pages about one job, the buttons on it, and the question before an action.

Invariant: every view checks the user's permission itself, a GET changes nothing, and what was changed is logged.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseNotFound, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...models import Job
from ..job_page.history import history_of
from ..job_page.job_page import JobPage
from ..ui.ids import is_id
from ..ui.job_states import badge_of
from ..verbs import log
from ..verbs.forms import Instruction, Question
from ..verbs.many_jobs import Action
from ..verbs.one_job import VERBS, Verb
from ..verbs.selection import SAMPLE, Selection
from ..verbs.summary import Survey
from ..verbs.table import Delete
from . import filter_choices
from .permissions import JobPermissions


class JobViews(JobPermissions):
    """What stands at the addresses of one job."""

    def get_urls(self) -> list[URLPattern]:
        """Django's pages, and one for each button."""
        return [
            path(
                f"<int:job_id>/{verb.name.replace('_', '-')}/",
                self.admin_site.admin_view(self._view_of(verb)),
                name=f"django_skipqueue_job_{verb.name}",
            )
            for verb in VERBS
        ] + super().get_urls()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a job. There is nothing to be posted here."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        job: Any = Job.objects.annotate(now=Now()).filter(pk=object_id).first() if is_id(object_id) else None
        is_fragment = "fragment" in request.GET  # asked for by the script of a page that is open
        if job is None:
            return HttpResponseNotFound() if is_fragment else self._gone(request, object_id)
        context = {
            "page": JobPage(job, job.now),
            "verbs": self._verbs_for(request, job),
            "others": self._others(job),
            "history": self._address("history", job.pk),
            "delete": self._address("delete", job.pk) if self.has_delete_permission(request, job) else "",
        }
        if is_fragment:
            return TemplateResponse(request, "admin/django_skipqueue/job/job.html", context)
        context |= self._context(request, job, title=str(job)) | (extra_context or {})
        return TemplateResponse(request, "admin/django_skipqueue/job/page.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Who did what to a job: as its row tells it, and Django's log."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = Job.objects.filter(pk=object_id).first() if is_id(object_id) else None
        if job is None:
            return self._gone(request, object_id)
        context = self._context(request, job, title=gettext("History: %(job)s") % {"job": job}) | {
            "job": job,
            "entries": history_of(job),
        }
        return TemplateResponse(
            request, "admin/django_skipqueue/job/object_history.html", context | (extra_context or {})
        )

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether to delete one job. The answer goes to the list's action: jobs are deleted in one way only."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.may(request, "delete"):
            raise PermissionDenied
        selection = Selection.by_hand([object_id])
        if not selection.jobs.exists():
            return self._gone(request, object_id)
        return self.ask(request, Delete(), selection, Delete.question(), target=self._address("changelist"))

    def ask(
        self, request: HttpRequest, action: Action, selection: Selection, question: Question, *, target: str = ""
    ) -> HttpResponse:
        """Ask whether to do it to many jobs; the answer is posted to `target`, or to where the question was."""
        survey = Survey.of(selection, action.statuses)
        order = action.order(survey)
        context = self._context(request, order, title=f"{order}{'?' if survey.eligible else '.'}") | {
            "explanation": action.explanation,
            "survey": survey,
            "sample": _with_badges(selection.sample()) if survey.count.found <= SAMPLE else [],
            "can_be_done": survey.eligible > 0 or survey.count.is_capped,
            "hidden": [("action", action.name), ("number", question.number), *selection.posted()],
            "question": question,
            "is_dangerous": action.is_dangerous,
            "target": target,
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/django_skipqueue/job/confirm.html", context)

    def _context(self, request: HttpRequest, subject: object, *, title: str) -> dict[str, Any]:
        """What Django's templates want; `subject` ends the breadcrumbs."""
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "original": subject,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }

    def _verbs_for(self, request: HttpRequest, job: Job) -> list[tuple[Verb, str]]:
        """The buttons that the job's status and the user's permissions allow, and where each is posted."""
        allowed = (verb for verb in VERBS if verb.fits(job) and self.may(request, verb.name))
        return [(verb, self._address(verb.name, job.pk)) for verb in allowed]

    def _others(self, job: Job) -> str:
        """The list of the jobs of the same task, if that is a name to filter by."""
        query = urlencode({"task": job.task})
        return f"{self._address('changelist')}?{query}" if len(job.task) <= filter_choices.LONGEST else ""

    def _view_of(self, verb: Verb) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, job_id: int) -> HttpResponse:
            methods = ["GET", "HEAD", "POST"] if verb.asks else ["POST"]
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            if not self.may(request, verb.name):
                raise PermissionDenied
            job = Job.objects.filter(pk=job_id).first()
            if job is None:
                return self._gone(request, str(job_id))
            if not verb.asks:
                return self._do_one(request, verb, job, Instruction(request.user.get_username()))
            question = verb.question(request.POST)
            if question.is_valid():
                return self._do_one(request, verb, job, question.instruction(request.user.get_username()))
            return self._ask_one(request, verb, job, question)

        return view

    def _ask_one(self, request: HttpRequest, verb: Verb, job: Job, question: Question) -> HttpResponse:
        """Ask whether to do it to this job, unless it cannot be done."""
        page = self._address("change", job.pk)
        if not verb.fits(job):
            self.message_user(request, verb.refused(job).message, messages.WARNING)
            return HttpResponseRedirect(page)
        context = self._context(request, verb.order(job), title=f"{verb.order(job)}?") | {
            "explanation": verb.hint,
            "question": question,
            "sample": _with_badges([job]),
            "can_be_done": True,
            "is_dangerous": verb.is_dangerous,
            "target": self._address(verb.name, job.pk),
            "back": page,
        }
        return TemplateResponse(request, "admin/django_skipqueue/job/confirm.html", context)

    def _do_one(self, request: HttpRequest, verb: Verb, job: Job, wanted: Instruction) -> HttpResponse:
        answer = verb.apply(job, wanted)
        for pk, name, message in answer.changes:
            log.record(request, {pk: name}, message)
        self.message_user(request, answer.message, messages.SUCCESS if answer.changes else messages.WARNING)
        return HttpResponseRedirect(self._address("change", answer.show))

    def _address(self, name: str, *args: Any) -> str:
        return reverse(f"admin:django_skipqueue_job_{name}", args=args, current_app=self.admin_site.name)

    def _gone(self, request: HttpRequest, job_id: str) -> HttpResponse:
        message = gettext("There is no job %(id)s. It may have been deleted.") % {"id": job_id}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self._address("changelist"))


def _with_badges(jobs: list[Job]) -> list[tuple[Job, SafeString]]:
    return [(job, badge_of(job)) for job in jobs]
