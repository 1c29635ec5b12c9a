"""The URLs of admin pages with several databases. Each URL names the database of the page: `?database=queue_1`.

The whole request uses the database that its URL names. The views themselves do not know the parameter:
`in_its_database` removes it from the request, and adds it to every URL of the page (see `console.admin.ui.addresses`).
If the URL names an unknown database, the response is 404. With one database, URLs have no parameter.

URLs of the default database have the parameter too, so that a page which was opened before the setting `DATABASE`
changed still acts on its own database.
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
from ...console.admin.ui.addresses import PAGE_NAME_PREFIX, address_of, carrying
from ...console.admin.ui.time_limit import RETRY_AFTER_SECONDS, limits_its_time
from ...console.parts import PartNotice
from ...console.search import is_id
from ...exceptions import InvalidOption
from ...models import Job
from ...queue.silence import can_be_reached
from ...values.records import parse_handle

DATABASE_PARAMETER = "database"
"""The URL parameter with the alias of the database."""

PAGES_OF_EACH_DATABASE = ("changelist", "dashboard", "failures", "limits")
"""On these pages, the switch leads to the same page of the other database; on all other pages, to a list."""

AdminView = Callable[..., HttpResponse]


def carried_parameters() -> dict[str, str]:
    """Return the parameter that all links of a page get; nothing if there is one database."""
    return {DATABASE_PARAMETER: settings.database} if settings.serves_several else {}


def in_its_database(model_admin: Any, view: AdminView) -> AdminView:
    """Wrap a view, so that it shows the database that the request names. For an unknown alias, respond with 404."""

    @wraps(view)
    def view_of_database(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.serves_several:
            return view(request, *args, **kwargs)
        alias = request.GET.get(DATABASE_PARAMETER, settings.database)
        _remove_parameter(request)
        # Checked first: otherwise the response would reveal whether the database exists.
        if not model_admin.admin_site.has_permission(request):
            return _page(model_admin, "admin/404.html", 404)(request)
        if address_by_handle := _address_by_handle(request):
            return HttpResponseRedirect(address_by_handle)
        if alias not in settings.served_databases:
            links = _links(request, shown_alias="")
            return _page(model_admin, "admin/django_skipqueue/databases/not_served.html", 404, about=links)(request)
        if address_of_job := _address_of_searched_job(model_admin, request):
            return HttpResponseRedirect(address_of_job)
        _name_database(request, alias)
        with using_database(alias):
            response = _if_reachable(model_admin, view)(request, *args, **kwargs)
            if isinstance(response, TemplateResponse):
                response.render()
            return response

    return view_of_database


def _remove_parameter(request: HttpRequest) -> None:
    """Remove the parameter from the request, because Django's lists treat unknown parameters as filters."""
    query = request.GET.copy()
    query.pop(DATABASE_PARAMETER, None)
    request.GET = query  # type: ignore[assignment]  # a view may only change its own copy


def _name_database(request: HttpRequest, alias: str) -> None:
    """Make the full path of the request name the database, because forms of the page post to this path."""
    query = request.GET.copy()
    query[DATABASE_PARAMETER] = alias
    request.META["QUERY_STRING"] = query.urlencode()


def _address_by_handle(request: HttpRequest) -> str:
    """Return the URL of an object that Django's log names by database and id; empty if it names only an id."""
    match = request.resolver_match
    alias, colon, pk = unquote(match.kwargs.get("object_id", "") if match else "").partition(":")
    if not (match and colon and alias in settings.served_databases):
        return ""
    with using_database(alias):
        return carrying(reverse(match.view_name, kwargs={"object_id": quote(pk)}, current_app=match.namespace))


def _address_of_searched_job(model_admin: Any, request: HttpRequest) -> str:
    """Return the URL of the job if a search names it by a handle such as `queue_1:42`; otherwise empty."""
    match = request.resolver_match
    is_list = match is not None and match.url_name == f"{Job._meta.app_label}_{Job._meta.model_name}_changelist"
    if not is_list or request.method != "GET":
        return ""
    try:
        handle = parse_handle(request.GET.get(SEARCH_VAR, "").strip())
    except InvalidOption:
        return ""
    if handle.database not in settings.served_databases or not is_id(str(handle.id)):
        return ""
    with using_database(handle.database):
        return str(model_admin.address("change", handle.id))


def _if_reachable(model_admin: Any, view: AdminView) -> AdminView:
    """Wrap a view, so that it says if the database cannot be reached. Views with a time limit say so themselves."""
    alias = settings.database
    title = gettext("The database %(alias)s cannot be reached") % {"alias": alias}
    unreachable = _page(model_admin, "admin/django_skipqueue/databases/unreachable.html", 503, title=title)

    def view_if_reachable(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
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

    return view_if_reachable


def _page(model_admin: Any, template: str, status: int, **context: Any) -> AdminView:
    """Return a view that shows a page to logged-in users without reading a queue's database."""

    def page(request: HttpRequest) -> HttpResponse:
        site_context = model_admin.context_of_site(request) | {"opts": model_admin.opts}
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
        return TemplateResponse(request, template, site_context | context, status=status, headers=headers)

    return model_admin.admin_site.admin_view(page)  # type: ignore[no-any-return]


def switch(request: HttpRequest) -> PartNotice | None:
    links = _links(request, shown_alias=settings.database) if settings.serves_several else []
    return PartNotice(template="admin/django_skipqueue/databases/switch.html", about=links) if links else None


def _links(request: HttpRequest, *, shown_alias: str) -> list[tuple[str, str, bool, bool]]:
    """Return for each database its alias, its URL, whether the page shows it, and whether it is retiring.

    On pages of other packages, return nothing.
    """
    resolved, links = request.resolver_match, []
    name = (resolved and resolved.url_name) or ""
    if resolved is None or not name.startswith(PAGE_NAME_PREFIX):
        return []
    model, _, page = name.removeprefix(PAGE_NAME_PREFIX).partition("_")
    for alias in settings.served_databases:
        with using_database(alias):
            list_address = address_of(f"{model}_changelist", site=resolved.namespace)
            address = carrying(request.path) if page in PAGES_OF_EACH_DATABASE else list_address
        links.append((alias, address, alias == shown_alias, alias in settings.retiring))
    return links
