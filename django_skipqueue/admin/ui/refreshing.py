"""Pages that a script fetches again and again: an answer without content as long as the page is the same."""

import hashlib
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import get_conditional_response

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
