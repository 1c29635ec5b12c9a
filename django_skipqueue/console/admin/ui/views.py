"""What the admins of all models need for views of their own: addresses, contexts of templates, pages that refresh.

Invariant: every view, ours or Django's, has the time limit of `console.admin.ui.time_limit`, unless it is marked as
having one; and parts may wrap it.

A page that a script fetches again and again gets an answer without content while its content does not change.
"""

import hashlib
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import get_conditional_response

from ...parts import consoles
from .own_log import OwnLog
from .time_limit import time_limited

DATABASE = "database"
"""In the query of an address, if there are several databases: the alias of the one that the page shows."""


def without_nul(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view; 404 for an id with a NUL, which PostgreSQL would refuse with an error."""

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if any("\0" in str(value) for value in (*args, *kwargs.values())):
            raise Http404
        return view(request, *args, **kwargs)

    return shown


class OwnViews(OwnLog):
    """For classes that the admin registers. A view has the name `django_skipqueue_MODEL_NAME`, as Django's own have."""

    @property
    def urls(self) -> list[URLPattern]:
        """The addresses as the admin site takes them, each with a view whose queries are limited."""
        wraps_of_parts = [console.admin_view for console in consoles() if console.admin_view]
        patterns = self.get_urls()
        for pattern in patterns:
            view = time_limited(self, pattern.callback)
            for wrap in wraps_of_parts:
                view = wrap(self, view)
            pattern.callback = without_nul(view)
        return patterns

    def page(self, address: str, name: str, view: Callable[..., HttpResponse]) -> URLPattern:
        return path(address, self.admin_site.admin_view(view), name=self._full_name(name))

    def address(self, name: str, *args: Any, query: dict[str, Any] | None = None) -> str:
        return reverse(f"admin:{self._full_name(name)}", args=args, query=query, current_app=self.admin_site.name)

    def context(self, request: HttpRequest, subject: object, *, title: str) -> dict[str, Any]:
        """The context that Django's templates need; `subject` ends the breadcrumbs."""
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "original": subject,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }

    def _full_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"


VOLATILE = re.compile(rb'name="csrfmiddlewaretoken" value="[^"]*"|<span data-volatile>[^<]*</span>')
"""The parts that differ each time: tokens, and elements with the attribute `data-volatile`."""

View = Callable[..., HttpResponse]


def refreshing(view: View) -> View:
    """Decorate a view of a `ModelAdmin`: its pages have an ETag, and a GET with `If-None-Match` may answer 304."""

    @wraps(view)
    def conditional(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(self, request, *args, **kwargs)
        if request.method not in ("GET", "HEAD") or response.status_code != 200:
            return response
        if isinstance(response, TemplateResponse):
            response.render()
        digest = hashlib.sha256(VOLATILE.sub(b"", response.content), usedforsecurity=False)
        etag = response.headers["ETag"] = f'"{digest.hexdigest()[:32]}"'
        answer = get_conditional_response(request, etag=etag, response=response)
        return response if answer is None else answer

    return conditional
