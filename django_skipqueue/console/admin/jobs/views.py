"""The page of one job, its history, and the doctor's; what all views of jobs share: a job that is gone.

Invariant: every view checks the user's permission itself, and a GET changes nothing.
"""

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseNotFound, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ....models import Job
from ...metrics.page import page as metrics_page
from ...parts import PartPage, consoles
from ...queues_and_workers import LONGEST_NAME
from ...search import is_id
from ..dashboard.dashboard import Dashboard
from ..doctor_page import DoctorPage
from ..ui.time_limit import limits_itself
from ..ui.views import OwnViews, refreshing
from ..verbs.copies import BULK_TASK, EDIT, why_not_copied
from ..verbs.table import BUTTONS, RUN_AGAIN
from ..verbs.verb import Button
from .history import history_of
from .page import JobPage
from .permissions import JobPermissions


class JobViews(OwnViews, JobPermissions):
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
        context: dict[str, Any] = {
            "page": JobPage(job, job.now),
            "progress": self.address("progress", job.pk) if job.task == BULK_TASK else "",
            "buttons": self._buttons_for(request, job),
            "others": self._others(job),
            "notes": [note for part in consoles() if part.about_job and (note := part.about_job(job))],
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

    def part_page_view(self, request: HttpRequest, *, page: PartPage) -> HttpResponse:
        """Show a page of a part. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        return page.view(self, request)

    @refreshing
    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """Show whether the queue is well. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        dashboard = Dashboard.of(request.GET, request.user.has_perm)
        context = self.context(request, None, title=gettext("Dashboard")) | {"dashboard": dashboard}
        return TemplateResponse(request, "admin/django_skipqueue/dashboard/page.html", context)

    @limits_itself
    def doctor_view(self, request: HttpRequest) -> HttpResponse:
        """Examine the queue and its database, and show what is wrong. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = self.context(request, None, title=gettext("Doctor")) | {"page": DoctorPage.now()}
        return TemplateResponse(request, "admin/django_skipqueue/doctor.html", context)

    @limits_itself
    def metrics_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return metrics_page()

    def redirect_job_missing(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """Redirect to the page that a part has for the job; else to the list of jobs, with a message."""
        for part in consoles():
            if part.find_job and (page := part.find_job(request, job_id, self.admin_site.name)):
                return HttpResponseRedirect(page)
        message = gettext("There is no job %(id)s. It may have been deleted.") % {"id": job_id}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    def _buttons_for(self, request: HttpRequest, job: Job) -> list[tuple[Button, str]]:
        """The buttons that the job's status and the user's permissions allow, and where each is posted."""
        buttons = [
            (button.for_job(job), self.address(verb.name, job.pk))
            for verb, button in BUTTONS
            if verb.fits(job) and self.may(request, verb)
        ]
        if RUN_AGAIN.is_offered_for(job.status) and self.may(request, RUN_AGAIN):
            buttons.append((EDIT, self.address("edit", job.pk)))
        copying = (EDIT, RUN_AGAIN.button) if why_not_copied(job) else ()
        return [(button, address) for button, address in buttons if button not in copying]

    def _others(self, job: Job) -> str:
        query = urlencode({"task": job.task})
        return f"{self.address('changelist')}?{query}" if len(job.task) <= LONGEST_NAME else ""
