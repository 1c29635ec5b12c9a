"""Which of several databases a page shows, `?database=queue_1`, in every address of ours in a response.

Invariant: the whole of a request uses the database that its address names, and no page of another database is shown
instead. The views know nothing of it: the parameter is taken off the request, and put into each address of the
response: links, forms, and where it redirects. With one database the request and the response stay as they are.

The finished response is rewritten, and not the places where addresses are made, because Django's own templates and its
admin make many of them. So nobody can forget a link, a form or a verb, and no button acts on a job with the same id in
another database. Every address gets the parameter, also on pages of the database that is shown by default: a page that
was opened before the setting `DATABASE` changed still acts on its own.
"""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from html import escape, unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext

from ...conf import settings, using_database
from ...console.admin.ui.time_limit import RETRY_SECONDS, limits_its_time
from ...console.admin.ui.views import DATABASE
from ...console.search import is_id
from ...exceptions import InvalidOption
from ...models import Job
from ...queue.silence import can_be_reached
from ...values.records import parse_handle

LINK = re.compile(r'(\s(?:href|action|formaction)=")([^"]*)"')
"""An attribute with an address. In the texts of a page, quotes are escaped."""

FORM = re.compile(r"<form\b([^>]*)>")
POSTS = re.compile(r'\smethod="post"', re.IGNORECASE)
ACTION = re.compile(r'\saction="([^"]*)"')

CONTENT = re.compile(r'<div id="content"[^>]*>')


class Carrier:
    """Carries the alias of one database through the addresses of one page."""

    def __init__(self, alias: str, path: str, query: str, prefixes: Iterable[str]) -> None:
        """`path`, `query`: the address of the page itself. `prefixes`: with what the paths of our pages begin."""
        self._carried = urlencode({DATABASE: alias})
        self._field = f'<input type="hidden" name="{DATABASE}" value="{escape(alias)}">'
        self._prefixes = tuple(prefixes)
        self._own = self.address(f"{path}?{query}")

    def address(self, address: str) -> str:
        """The address with the database, if it leads to a page of ours and names none."""
        parts = urlsplit(address)
        is_ours = parts.path.startswith(self._prefixes) if parts.path else address.startswith("?")
        if parts.netloc or not is_ours or DATABASE in parse_qs(parts.query, keep_blank_values=True):
            return address
        query = f"{parts.query}&{self._carried}" if parts.query else self._carried
        return parts._replace(query=query).geturl()

    def html(self, page: str) -> str:
        return LINK.sub(self._link, FORM.sub(self._form, page))

    def with_switch(self, page: str, switch: str) -> str:
        """The page with the switch at the top of its content; a part of a page has none."""
        return CONTENT.sub(lambda found: found[0] + switch, page, count=1)

    def _link(self, found: re.Match[str]) -> str:
        address = unescape(found[2])
        carried = self.address(address)
        return found[0] if carried == address else f'{found[1]}{escape(carried)}"'

    def _form(self, found: re.Match[str]) -> str:
        """A form that is not posted gets a field: browsers put the fields in place of the query of its address."""
        attributes = found[1]
        action = ACTION.search(attributes)
        if not POSTS.search(attributes):
            is_ours = not action or not action[1] or action[1].startswith(("?", *self._prefixes))
            return f"{found[0]}{self._field}" if is_ours else found[0]
        if action and action[1]:
            return found[0]
        return f'<form{ACTION.sub("", attributes)} action="{escape(self._own)}">'


SWITCHED = ("changelist", "dashboard", "failures", "limits")
"""The pages that each database has. From others, as of one job or of all databases, the switch leads to a list."""

View = Callable[..., HttpResponse]


def in_its_database(model_admin: Any, view: View) -> View:
    """The view, for the database that the request names: answers 404 for an alias that is not served."""

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.serves_several:
            return view(request, *args, **kwargs)
        alias = request.GET.get(DATABASE, settings.database)
        _take_off(request)
        if not model_admin.admin_site.has_permission(request):  # the answer would tell whether there is such a database
            return _plain(model_admin, "admin/404.html", 404)(request)
        if elsewhere := _by_handle(request):
            return HttpResponseRedirect(elsewhere)
        if alias not in settings.served_databases:
            return _finished(model_admin, request, "", _plain(model_admin, "admin/404.html", 404)(request))
        if found := _searched(model_admin, request):
            return HttpResponseRedirect(found)
        with using_database(alias):
            return _finished(model_admin, request, alias, _reached(model_admin, view)(request, *args, **kwargs))

    return shown


def _take_off(request: HttpRequest) -> None:
    """Leave what the views know: Django's lists take other parameters for filters."""
    query = request.GET.copy()
    query.pop(DATABASE, None)
    request.GET = query  # type: ignore[assignment]  # a view that changes it changes its own copy


def _by_handle(request: HttpRequest) -> str:
    """The address of the object that the log names by its database and its id; empty for an id alone."""
    match = request.resolver_match
    alias, colon, pk = unquote(match.kwargs.get("object_id", "") if match else "").partition(":")
    if not (match and colon and alias in settings.served_databases):
        return ""
    path = reverse(match.view_name, kwargs={"object_id": quote(pk)}, current_app=match.namespace)
    return f"{path}?{urlencode({DATABASE: alias})}"


def _searched(model_admin: Any, request: HttpRequest) -> str:
    """The address of the job that a search in the list of jobs names by a handle such as `queue_1:42`; else empty."""
    match = request.resolver_match
    is_list = match is not None and match.url_name == f"{Job._meta.app_label}_{Job._meta.model_name}_changelist"
    if not is_list or request.method != "GET":
        return ""
    try:
        named = parse_handle(request.GET.get(SEARCH_VAR, "").strip())
    except InvalidOption:
        return ""
    if named.database not in settings.served_databases or not is_id(str(named.id)):
        return ""
    return str(model_admin.address("change", named.id, query={DATABASE: named.database}))


def _reached(model_admin: Any, view: View) -> View:
    """The view; a page that says so if the database cannot be reached. A view that limits its time says it itself."""
    alias = settings.database
    title = gettext("The database %(alias)s cannot be reached") % {"alias": alias}
    unreachable = _plain(model_admin, "admin/django_skipqueue/databases/unreachable.html", 503, title=title)

    def reached(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if limits_its_time(view):
            return view(request, *args, **kwargs)
        if not can_be_reached(alias):
            return unreachable(request)
        try:
            return view(request, *args, **kwargs)
        except OperationalError:
            if can_be_reached(alias):
                raise
            return unreachable(request)

    return reached


def _plain(model_admin: Any, template: str, status: int, **context: Any) -> View:
    """A page for those who are logged in, which needs no database of a queue."""

    def page(request: HttpRequest) -> HttpResponse:
        everywhere = {**model_admin.admin_site.each_context(request), "opts": model_admin.opts}
        headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
        return TemplateResponse(request, template, everywhere | context, status=status, headers=headers)

    return model_admin.admin_site.admin_view(page)  # type: ignore[no-any-return]


def _finished(model_admin: Any, request: HttpRequest, alias: str, response: HttpResponse) -> HttpResponse:
    if isinstance(response, TemplateResponse):
        response.render()
    carrier = Carrier(alias or settings.database, request.path, request.GET.urlencode(), _prefixes(model_admin))
    if "Location" in response.headers:
        response.headers["Location"] = carrier.address(response.headers["Location"])
    if response.headers.get("Content-Type", "").startswith("text/html") and response.content:
        page = carrier.html(response.content.decode(response.charset))
        response.content = carrier.with_switch(page, _switch(model_admin, request, alias))
    return response


def _prefixes(model_admin: Any) -> list[str]:
    """The paths below which our pages are: in this admin site, and in the one that addresses lead to by default."""
    names = {model_admin.admin_site.name, None}
    app = {"app_label": model_admin.opts.app_label}
    return [reverse("admin:app_list", kwargs=app, current_app=name) for name in names]


def _switch(model_admin: Any, request: HttpRequest, alias: str) -> str:
    match = request.resolver_match
    name = (match and match.url_name) or ""
    own = name.removeprefix(f"{model_admin.opts.app_label}_{model_admin.opts.model_name}_") in SWITCHED
    path = request.path if own else model_admin.address("changelist")
    links = [
        (each, f"{path}?{urlencode({DATABASE: each})}", each == alias, each in settings.retiring)
        for each in settings.served_databases
    ]
    return render_to_string("admin/django_skipqueue/databases/switch.html", {"links": links})
