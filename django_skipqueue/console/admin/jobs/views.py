"""The pages of a job, the dashboard and the doctor, and code that all job views share, such as permissions.

Every view checks the user's permission itself, and a GET changes nothing.
"""

import time
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_permission_codename
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....conf import settings
from ....models import Job, Status
from ....models.copies import BULK_TASK, copy_refusal
from ....queue.store import Store
from ...durations import span
from ...metrics.page import page as metrics_page
from ...parts import PartPage, consoles, sections_of
from ...queues_and_workers import MAX_LINKED_NAME_LENGTH
from ...rules.examination import examine, examine_at_once
from ...rules.rule import Severity
from ...rules.verdict import Verdict
from ...search import is_id
from ...verbs.table import DELETE, RUN_AGAIN, buttons
from ...verbs.verb import Button, Verb
from ..dashboard import Dashboard
from ..notices import ShownProblem
from ..ui.cells import badge
from ..ui.time_limit import limits_itself
from ..ui.views import READ, OwnViews, guarded, refreshing
from ..verbs.edit import EDIT
from .history import history_of
from .page import JobPage
from .task_page import TaskPage


class JobViews(OwnViews):
    """Views of jobs.

    Users cannot add or edit a job here. Every other action needs a permission: Django's own permission to view, add or
    delete, or the model's permission to retry or discard. Each verb names its permission.
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Refuse to delete a running job, because a worker is using it."""
        return super().has_delete_permission(request, obj) and (obj is None or obj.status != Status.RUNNING)

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        """Return whether the user may apply the verb. A user who may not view jobs may not change them either."""
        if verb is DELETE:  # use Django's method, because a project may override it
            allowed = self.has_delete_permission(request)
        else:
            codename = get_permission_codename(verb.permission, self.opts)
            allowed = request.user.has_perm(f"{self.opts.app_label}.{codename}")
        return allowed and self.has_view_permission(request)

    @guarded(*READ)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a job."""
        job: Any = Job.objects.annotate(now=Now()).filter(pk=object_id).first() if is_id(object_id) else None
        is_fragment = "fragment" in request.GET  # requested by the script that refreshes an open page
        if job is None:
            return HttpResponseNotFound() if is_fragment else self.redirect_job_missing(request, object_id)
        jobs_of_task = self.address("changelist", query={"task": job.task})
        content: dict[str, Any] = {
            "page": JobPage(job, job.now),
            "progress": self.address("progress", job.pk) if job.task == BULK_TASK else "",
            "buttons": self._buttons_for(request, job),
            "others": jobs_of_task if len(job.task) <= MAX_LINKED_NAME_LENGTH else "",
            "sections": sections_of(job),
            "notes": [note for part in consoles() if part.about_job and (note := part.about_job(job))],
            "history": self.address("history", job.pk),
            "delete": self.address("delete", job.pk) if self.has_delete_permission(request, job) else "",
        }
        if is_fragment:
            return TemplateResponse(request, "admin/django_skipqueue/job/job.html", content)
        return self.show(request, "job/page.html", job, content | (extra_context or {}), title=str(job))

    @guarded()
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        job = Job.objects.filter(pk=object_id).first() if is_id(object_id) else None
        if job is None:
            return self.redirect_job_missing(request, object_id)
        title = gettext("History: %(job)s") % {"job": job}
        content = {"job": job, "entries": history_of(job)} | (extra_context or {})
        return self.show(request, "job/object_history.html", job, content, title=title)

    def part_page_view(self, request: HttpRequest, *, page: PartPage, **named: Any) -> HttpResponse:
        @guarded(*page.methods, may=lambda _, request: not page.permission or request.user.has_perm(page.permission))
        def view(self: "JobViews", request: HttpRequest) -> HttpResponse:
            return page.view(self, request, **named)

        return view(self, request)

    @refreshing
    @guarded(*READ)
    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """Show the dashboard."""
        dashboard = Dashboard.of(request.GET, request.user.has_perm)
        return self.show(request, "dashboard/page.html", None, {"dashboard": dashboard}, title=gettext("Dashboard"))

    @refreshing
    @guarded(*READ)
    def task_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page of a task."""
        page = TaskPage(request.GET.get("task", "").replace("\0", "")[:MAX_LINKED_NAME_LENGTH])
        content = {"page": page, "sections": page.sections}
        return self.show(request, "job/task.html", page.name, content, title=page.name)

    @limits_itself
    @guarded(*READ)
    def doctor_view(self, request: HttpRequest) -> HttpResponse:
        """Examine the queue and its database, and show the problems."""
        return self.show(request, "doctor.html", None, {"page": _examined(request.user)}, title=gettext("Doctor"))

    @limits_itself
    @guarded()
    def metrics_view(self, request: HttpRequest) -> HttpResponse:
        return metrics_page()

    def redirect_job_missing(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """Redirect to the page where a part still shows the job; otherwise to the job list."""
        for part in consoles():
            if part.find_job and (page := part.find_job(request, job_id, self.admin_site.name)):
                return HttpResponseRedirect(page)
        message = gettext("There is no job %(id)s. It may have been deleted.") % {"id": job_id}
        self.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(self.address("changelist"))

    def _buttons_for(self, request: HttpRequest, job: Job) -> list[tuple[Button, str]]:
        """Return the buttons that the job's status and the user's permissions allow, each with the URL to post to."""
        offered = [
            (button.for_job(job), self.address(verb.name, job.pk))
            for verb, button in buttons()
            if verb.fits(job) and self.may(request, verb)
        ]
        if RUN_AGAIN.is_offered_for(job.status) and self.may(request, RUN_AGAIN):
            offered.append((EDIT, self.address("edit", job.pk)))
        copy_buttons = (EDIT, RUN_AGAIN.button) if copy_refusal(job) else ()
        return [(button, address) for button, address in offered if button not in copy_buttons]


SEVERITY_LABELS: dict[Severity, str | Promise] = {
    Severity.CRITICAL: _("critical"),
    Severity.WARNING: _("warning"),
    Severity.INFO: _("info"),
    Severity.OK: _("ok"),
}


def _examined(user: Any) -> dict[str, Any]:
    """Examine the databases. The most severe findings come first; equally severe findings are grouped by database."""
    examined_at, start = localtime(), time.monotonic()
    aliases = settings.served_databases if settings.serves_several else ()
    findings = examine_at_once(aliases) if aliases else examine(Store.default())
    rows: list[dict[str, Any]] = [
        {
            "finding": finding,
            "badge": badge(finding.severity, SEVERITY_LABELS[finding.severity]),
            "address": ShownProblem.to(user, finding).address,
        }
        for finding in findings
    ]
    return {
        "verdict": Verdict.of(findings),
        "found": [row for row in rows if row["finding"].severity != Severity.OK],
        "well": [row for row in rows if row["finding"].severity == Severity.OK],
        "duration": span(time.monotonic() - start),
        "at": examined_at,
    }
