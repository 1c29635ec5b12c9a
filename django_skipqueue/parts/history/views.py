"""The views of failures: all causes, and one with its jobs.

Invariant: they change nothing. Their buttons post to the list of the jobs, which asks and applies the verb.
"""

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console import causes
from ...console.admin.ui.views import refreshing
from ...console.admin.verbs.table import DISCARD, RETRY
from ...console.admin.verbs.verb import Verb
from ...console.admin.verbs.waiting_jobs import RUN_NOW
from ...console.job_states import status_of
from ...console.parts import PartPage
from .admin import CausePage, FailuresPage

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin

LABELS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these")),
    (RUN_NOW, _("Run these now")),
    (DISCARD, _("Discard these")),
)
"""The verbs for all jobs of a cause."""


@refreshing
def failures_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    context = admin.context(request, None, title=gettext("Failing now")) | {"page": FailuresPage.now()}
    return TemplateResponse(request, "admin/django_skipqueue/history/page.html", context)


def cause_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    task, text = (request.GET.get(name, "").replace("\0", "") for name in ("task", "cause"))
    page = CausePage.of(causes.of_task(task, text))
    if page is None:
        admin.message_user(request, gettext("No failed attempt with this cause is known."), messages.WARNING)
        return HttpResponseRedirect(admin.address("failures"))
    context = admin.context(request, page.shown.exception, title=page.shown.exception) | {
        "page": page,
        "groups": [(group, _verbs_for(admin, request, group.state)) for group in page.groups],
        "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
    }
    return TemplateResponse(request, "admin/django_skipqueue/history/cause.html", context)


def _verbs_for(admin: "JobAdmin", request: HttpRequest, state: str) -> list[tuple[Verb, Any]]:
    status = status_of(state)
    return [(verb, label) for verb, label in LABELS if verb.is_offered_for(status) and admin.may(request, verb)]


PAGES = (
    PartPage(name="failures", path="failures/", view=failures_view, title=_("Failing now")),
    PartPage(name="cause", path="failures/cause/", view=cause_view),
)
