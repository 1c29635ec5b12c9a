"""The view of the page `limits`: the keys for which jobs wait.

Invariant: it changes nothing, and takes a bounded time.
"""

from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.ui.views import refreshing
from ...console.parts import PartPage
from ...queue.store import Store
from .admin import KeysPage

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin


@refreshing
def limits_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    page = KeysPage.of(Store.default(), request.GET)
    context = admin.context(request, None, title=gettext("Limits")) | {"page": page}
    return TemplateResponse(request, "admin/django_skipqueue/keyed/page.html", context)


PAGES = (PartPage(name="limits", path="limits/", view=limits_view, title=_("Limits")),)
