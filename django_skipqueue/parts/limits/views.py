"""The view of limits: the keys for which jobs wait.

Invariant: it changes nothing, and takes a bounded time.
"""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ...console.admin.jobs.permissions import JobPermissions
from ...console.admin.ui.views import OwnViews, refreshing
from ...queue.store import Store
from .admin import LimitsPage


class LimitViews(OwnViews, JobPermissions):
    @refreshing
    def limits_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = LimitsPage.of(Store.default(), request.GET)
        context = self.context(request, None, title=gettext("Limits")) | {"page": page}
        return TemplateResponse(request, "admin/django_skipqueue/limits/page.html", context)
