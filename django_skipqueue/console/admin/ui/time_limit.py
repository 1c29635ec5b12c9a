"""Limits how long each query of a page may take, and shows an error page if a query takes longer.

A request is one transaction, so if a query exceeds the limit, the request changes nothing. The doctor's page is an
exception: each of its checks is a separate transaction.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import psycopg
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ....queue.session import limit_statements
from ....queue.store import Store
from ...durations import span

QUERY_SECONDS = 5.0

RETRY_AFTER_SECONDS = 10
"""After this time, a program should repeat the request."""

LIMITS_ITSELF = "skipqueue_limits_itself"
"""The attribute that `limits_itself` sets on a view."""

View = Callable[..., HttpResponse]


class WorkAfterTransaction(HttpResponse):
    """A response whose `work` runs after the view's transaction. `work` commits in parts, and limits its own time."""

    def __init__(self, work: Callable[[], HttpResponse]) -> None:
        super().__init__()
        self.work = work


def limits_itself(view: View) -> View:
    """Mark a view that limits its queries' time itself, and that also works if the database is unavailable."""
    setattr(view, LIMITS_ITSELF, True)
    return view


def limits_its_time(view: View) -> bool:
    return getattr(view, LIMITS_ITSELF, False)


def time_limited(model_admin: Any, view: View) -> View:
    """Run the view in one transaction, and answer 503 if a query takes longer than `QUERY_SECONDS`.

    The page is rendered within the transaction, because templates send queries too. A view with `limits_itself` is
    returned unchanged.
    """
    if limits_its_time(view):
        return view

    @wraps(view)
    def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        store = Store.default()
        try:
            with transaction.atomic(using=store.alias):
                limit_statements(store, QUERY_SECONDS)
                response = view(request, *args, **kwargs)
                if isinstance(response, TemplateResponse):
                    response.render()
        except OperationalError as error:
            if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
            return _too_slow(model_admin, request)
        return response.work() if isinstance(response, WorkAfterTransaction) else response

    return limited


def _too_slow(model_admin: Any, request: HttpRequest) -> HttpResponse:
    context = {
        **model_admin.context_of_site(request),
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
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )
