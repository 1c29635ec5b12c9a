"""A limit on the time that each query of a page may take, and the page that is shown instead when one takes longer.

Invariant: a request is one transaction. If a query meets the limit, nothing of the request is done. The page of the
doctor is none: each of its checks is a transaction.
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
"""When a program should ask again."""

LIMITS_ITSELF = "skipqueue_limits_itself"
"""The attribute of a view that `limits_itself`."""

View = Callable[..., HttpResponse]


class Afterwards(HttpResponse):
    """A view returns it to go on after its transaction, with work that commits in parts and limits its time itself."""

    def __init__(self, work: Callable[[], HttpResponse]) -> None:
        super().__init__()
        self.work = work


def limits_itself(view: View) -> View:
    """Mark a view that limits the time of its queries, and answers without a database as well."""
    setattr(view, LIMITS_ITSELF, True)
    return view


def limits_its_time(view: View) -> bool:
    return getattr(view, LIMITS_ITSELF, False)


def time_limited(model_admin: Any, view: View) -> View:
    """The view as one transaction: a request with a query that takes longer than `QUERY_SECONDS` answers 503.

    The page is rendered before the transaction ends, since templates send queries as well. A view that `limits_itself`
    is returned as it is.
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
        return response.work() if isinstance(response, Afterwards) else response

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
