"""Which of several databases a page shows: the one that its address names, as in `?database=queue_1`.

Invariant: the whole of a request uses the database that its address names, and no page of another database is shown
instead. The views know nothing of it: the parameter is taken off the request, and every address of a page carries it
(see `console.admin.ui.addresses`). With one database, nothing is added.

Every address gets the parameter, also on pages of the database that is shown by default: a page that was opened before
the setting `DATABASE` changed still acts on its own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext

from ...conf import settings, using_database
from ...console.admin.ui.addresses import PREFIX, address_of, carrying
from ...console.admin.ui.time_limit import RETRY_SECONDS, limits_its_time
from ...console.parts import PartNotice
from ...console.search import is_id
from ...exceptions import InvalidOption
from ...models import Job
from ...queue.silence import can_be_reached
from ...values.records import parse_handle

DATABASE = "database"
"""The parameter: the alias of the database."""

SWITCHED = ("changelist", "dashboard", "failures", "limits")
"""The pages that each database has. From others, as of one job or of all databases, the switch leads to a list."""

View = Callable[..., HttpResponse]


def carried() -> dict[str, str]:
    """See `PartConsole.carried`."""
    return {DATABASE: settings.database} if settings.serves_several else {}


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
            links = _links(request, shown="")
            return _plain(model_admin, "admin/django_skipqueue/databases/not_served.html", 404, about=links)(request)
        if found := _searched(model_admin, request):
            return HttpResponseRedirect(found)
        _name(request, alias)
        with using_database(alias):
            response = _reached(model_admin, view)(request, *args, **kwargs)
            if isinstance(response, TemplateResponse):
                response.render()
            return response

    return shown


def _take_off(request: HttpRequest) -> None:
    """Leave what the views know: Django's lists take other parameters for filters."""
    query = request.GET.copy()
    query.pop(DATABASE, None)
    request.GET = query  # type: ignore[assignment]  # a view that changes it changes its own copy


def _name(request: HttpRequest, alias: str) -> None:
    """Have the full path of the request name the database in any case: forms of the page are posted to it."""
    query = request.GET.copy()
    query[DATABASE] = alias
    request.META["QUERY_STRING"] = query.urlencode()


def _by_handle(request: HttpRequest) -> str:
    """The address of the object that the log names by its database and its id; empty for an id alone."""
    match = request.resolver_match
    alias, colon, pk = unquote(match.kwargs.get("object_id", "") if match else "").partition(":")
    if not (match and colon and alias in settings.served_databases):
        return ""
    with using_database(alias):
        return carrying(reverse(match.view_name, kwargs={"object_id": quote(pk)}, current_app=match.namespace))


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
    with using_database(named.database):
        return str(model_admin.address("change", named.id))


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
        everywhere = model_admin.context_of_site(request) | {"opts": model_admin.opts}
        headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
        return TemplateResponse(request, template, everywhere | context, status=status, headers=headers)

    return model_admin.admin_site.admin_view(page)  # type: ignore[no-any-return]


def switch(request: HttpRequest) -> PartNotice | None:
    """See `PartConsole.over_page`."""
    links = _links(request, shown=settings.database) if settings.serves_several else []
    return PartNotice(template="admin/django_skipqueue/databases/switch.html", about=links) if links else None


def _links(request: HttpRequest, *, shown: str) -> list[tuple[str, str, bool, bool]]:
    """Of each database the alias, the address, whether it is shown, and whether it is retiring; none on other pages."""
    match, links = request.resolver_match, []
    name = (match and match.url_name) or ""
    if match is None or not name.startswith(PREFIX):
        return []
    model, _, page = name.removeprefix(PREFIX).partition("_")
    for alias in settings.served_databases:
        with using_database(alias):
            listed = address_of(f"{model}_changelist", site=match.namespace)
            address = carrying(request.path) if page in SWITCHED else listed
        links.append((alias, address, alias == shown, alias in settings.retiring))
    return links
