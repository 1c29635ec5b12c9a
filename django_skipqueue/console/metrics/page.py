"""The metrics page, which Prometheus scrapes.

Only staff users who may view jobs, and clients with the token, get the page.
"""

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ...conf import settings
from ...values.exposition import CONTENT_TYPE, exposition
from .scrape import scrape_all

FORBIDDEN = "Only for staff who may view jobs, or with `Authorization: Bearer …`: see SKIPQUEUE['METRICS_TOKEN'].\n"


@login_not_required  # a login page would be scraped as metrics, so the view checks access itself
@never_cache
@require_safe
def view(request: HttpRequest) -> HttpResponse:
    """Return all metrics to staff who may view jobs, or to clients with the token."""
    if not (_has_token(request) or _is_staff(request)):
        return HttpResponse(FORBIDDEN, status=403, content_type="text/plain; charset=utf-8")
    return page()


def page() -> HttpResponse:
    """Return all metrics. The caller must have checked access."""
    return HttpResponse(exposition(scrape_all()), content_type=CONTENT_TYPE)


def _has_token(request: HttpRequest) -> bool:
    token = settings.metrics_token
    scheme, _space, given_token = request.headers.get("Authorization", "").partition(" ")
    return token is not None and scheme.lower() == "bearer" and constant_time_compare(given_token.strip(), token)


def _is_staff(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    if user is None or not user.is_staff:
        return False
    return any(user.has_perm(f"django_skipqueue.{verb}_job") for verb in ("view", "change"))  # as in the admin
