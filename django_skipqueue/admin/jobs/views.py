"""The page of one job and its history, and what all views of jobs share: the context, addresses, a job that is gone.

Invariant: every view checks the user's permission itself, and a GET changes nothing.
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
from django.utils.translation import gettext

from ...models import Job
from ..job_page.history import history_of
from ..job_page.job_page import JobPage
from ..ui.ids import is_id
from ..verbs.table import BUTTONS
from ..verbs.verb import Button
from . import filter_choices
from .permissions import JobPermissions


class JobViews(JobPermissions):
    """The views that show one job."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a job. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        job: Any = Job.objects.annotate(now=Now()).filter(pk=object_id).first() if is_id(object_id) else None
        is_fragment = "fragment" in request.GET  # asked for by the script of a page that is open
        if job is None:
            return HttpResponseNotFound() if is_fragment else self.redirect_job_missing(request, object_id)
        context = {
            "page": JobPage(job, job.now),
            "buttons": self._buttons_for(request, job),
            "others": self._others(job),
            "history": self.address("history", job.pk),
            "delete": self.address("delete", job.pk) if self.has_delete_permission(request, job) else "",
        }
        if is_fragment:
            return TemplateResponse(request, "admin/django_skipqueue/job/job.html", context)
        context |= self.context(request, job, title=str(job)) | (extra_context or {})
        return TemplateResponse(request, "admin/django_skipqueue/job/page.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show who did what to a job, by its row and by Django's log."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = Job.objects.filter(pk=object_id).first() if is_id(object_id) else None
        if job is None:
            return self.redirect_job_missing(request, object_id)
        context = self.context(request, job, title=gettext("History: %(job)s") % {"job": job}) | {
            "job": job,
            "entries": history_of(job),
        }
        return TemplateResponse(
            request, "admin/django_skipqueue/job/object_history.html", context | (extra_context or {})
        )

    def page(self, address: str, name: str, view: Callable[..., HttpResponse]) -> URLPattern:
        """An entry for `get_urls`: the view `django_skipqueue_job_NAME`, for those who are logged in."""
        return path(address, self.admin_site.admin_view(view), name=f"django_skipqueue_job_{name}")

    def context(self, request: HttpRequest, subject: object, *, title: str) -> dict[str, Any]:
        """The context that Django's templates need; `subject` ends the breadcrumbs."""
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "original": subject,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }

    def address(self, name: str, *args: Any) -> str:
        """The address of the view `django_skipqueue_job_NAME` in this admin site."""
        return reverse(f"admin:django_skipqueue_job_{name}", args=args, current_app=self.admin_site.name)

    def redirect_job_missing(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """Redirect to the list of jobs, with the message that this job does not exist."""
        message = gettext("There is no job %(id)s. It may have been deleted.") % {"id": job_id}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    def _buttons_for(self, request: HttpRequest, job: Job) -> list[tuple[Button, str]]:
        """The buttons that the job's status and the user's permissions allow, and where each is posted."""
        return [
            (button, self.address(verb.name, job.pk))
            for verb, button in BUTTONS
            if verb.is_offered_for(job.status) and self.may(request, verb)
        ]

    def _others(self, job: Job) -> str:
        """The list of the jobs of the same task, if that is a name to filter by."""
        query = urlencode({"task": job.task})
        return f"{self.address('changelist')}?{query}" if len(job.task) <= filter_choices.LONGEST else ""
