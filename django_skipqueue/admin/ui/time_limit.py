"""A limit on the time that each query of a page may take, and the page that is shown instead when one takes longer."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import psycopg
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ...operators.durations import span
from ...store import Store

QUERY_SECONDS = 5.0

RETRY_SECONDS = 10
"""When a program should ask again."""

View = Callable[..., HttpResponse]


def time_limited(view: View) -> View:
    """Decorate a view of a `ModelAdmin`: a GET whose query takes longer than `QUERY_SECONDS` answers 503.

    The page is rendered before the view returns, since templates send queries as well.
    """

    @wraps(view)
    def limited(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return view(self, request, *args, **kwargs)
        store = Store.default()
        try:
            with transaction.atomic(using=store.alias):
                store.limit_statements(QUERY_SECONDS)
                response = view(self, request, *args, **kwargs)
                return response.render() if isinstance(response, TemplateResponse) else response
        except OperationalError as error:
            if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
        return _too_slow(self, request)

    return limited


def _too_slow(model_admin: Any, request: HttpRequest) -> HttpResponse:
    context = {
        **model_admin.admin_site.each_context(request),
        "title": gettext("The database took too long"),
        "opts": model_admin.opts,
        "span": span(QUERY_SECONDS),
        "is_narrowed": bool(request.GET),
    }
    return TemplateResponse(
        request,
        "admin/django_skipqueue/too_slow.html",
        context,
        status=503,
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
