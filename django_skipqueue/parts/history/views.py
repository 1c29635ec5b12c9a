"""The views of failures: all causes, and one with its jobs.

Invariant: they change nothing. Their buttons post to the list of the jobs, which asks and applies the verb.
"""

from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console import causes
from ...console.admin.jobs.permissions import JobPermissions
from ...console.admin.ui.views import OwnViews, refreshing
from ...console.admin.verbs.table import DISCARD, RETRY
from ...console.admin.verbs.verb import Verb
from ...console.admin.verbs.waiting_jobs import RUN_NOW
from ...console.job_states import state_of, status_of
from ...models import Job
from ...queue.store import Store
from .admin import FAILING, CausePage, FailuresPage, ShownCause, cause_of
from .failures import failures_of

LABELS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these")),
    (RUN_NOW, _("Run these now")),
    (DISCARD, _("Discard these")),
)
"""The verbs for all jobs of a cause."""


class FailureViews(OwnViews, JobPermissions):
    @refreshing
    def failures_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = self.context(request, None, title=gettext("Failing now")) | {"page": FailuresPage.now()}
        return TemplateResponse(request, "admin/django_skipqueue/failures/page.html", context)

    def cause_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        task, text = (request.GET.get(name, "").replace("\0", "") for name in ("task", "cause"))
        page = CausePage.of(causes.of_task(task, text))
        if page is None:
            self.message_user(request, gettext("No failed attempt with this cause is known."), messages.WARNING)
            return HttpResponseRedirect(self.address("failures"))
        context = self.context(request, page.shown.exception, title=page.shown.exception) | {
            "page": page,
            "groups": [(group, self._verbs_for(request, group.state)) for group in page.groups],
            "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
        }
        return TemplateResponse(request, "admin/django_skipqueue/failures/cause.html", context)

    def failures_like(self, job: Job) -> ShownCause | None:
        """The failed attempts with the cause of this job's last error, while the job has failed or is retried."""
        cause = cause_of(job) if state_of(job) in FAILING else None
        counts = failures_of(Store.default(), cause) if cause else None
        return ShownCause(counts) if counts else None

    def _verbs_for(self, request: HttpRequest, state: str) -> list[tuple[Verb, Any]]:
        status = status_of(state)
        return [(verb, label) for verb, label in LABELS if verb.is_offered_for(status) and self.may(request, verb)]
