"""The base of our `ModelAdmin` classes: URLs, templates, permissions, and entries in Django's admin log.

All views, including Django's own, have the time limit of `console.admin.ui.time_limit`, unless they limit themselves.
Parts may wrap views. A script that refreshes a page gets an empty answer if the page has not changed.

Django's admin log is in the project's default database. An object's history never contains entries about an object
with the same id in another database.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR, ChangeList
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.cache import get_conditional_response

from ....conf import load, settings
from ...parts import consoles
from .addresses import address_of, carried_parameters, carrying
from .time_limit import View, time_limited

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin


FILTERS_PARAMETER = "_changelist_filters"
"""The parameter in which Django's admin keeps the list's query while another page is open."""

HISTORY_PAGE_SIZE = 100
"""The number of history entries on a page."""


def logged_id(pk: object) -> str:
    """Return an object's id for Django's log. It includes the alias of a database other than the default one."""
    is_default_database = not settings.serves_several or settings.database == load().database
    return str(pk) if is_default_database else f"{settings.database}:{pk}"


def refusing_nul_characters(view: View) -> View:
    """Wrap a view to answer 404 if an id contains a NUL character, because PostgreSQL would raise an error."""

    @wraps(view)
    def checked_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if any("\0" in str(value) for value in (*args, *kwargs.values())):
            raise Http404
        return view(request, *args, **kwargs)

    return checked_view


class OwnChangeList(ChangeList):
    """A list whose links carry the same parameters as all our URLs."""

    def get_query_string(self, *args: Any, **kwargs: Any) -> str:
        return carrying(super().get_query_string(*args, **kwargs))


class OwnViews(AnyModelAdmin):
    """The base of registered admin classes. As in Django, a view's name is `django_skipqueue_MODEL_NAME`."""

    @property
    def urls(self) -> list[URLPattern]:
        """The URL patterns for the admin site. The queries of every view have a time limit."""
        wrappers_of_parts = [console.admin_view for console in consoles() if console.admin_view]
        patterns = self.get_urls()
        for pattern in patterns:
            view = time_limited(self, pattern.callback)
            for wrapper in wrappers_of_parts:
                view = wrapper(self, view)
            pattern.callback = refusing_nul_characters(view)
        return patterns

    def page(self, address: str, name: str, view: View) -> URLPattern:
        return path(address, self.admin_site.admin_view(view), name=self._full_name(name))

    def address(self, name: str, *args: Any, query: str | Mapping[str, Any] = "") -> str:
        return address_of(f"{self.opts.model_name}_{name}", *args, query=query, site=self.admin_site.name)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return OwnChangeList

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """Return the query that Django adds to its redirects, and to its links between a model's pages."""
        preserved, parameters = super().get_preserved_filters(request), carried_parameters()
        if not parameters:
            return preserved
        # Keep only the list's filters, because Django replaces the other parameters.
        filters = dict(parse_qsl(dict(parse_qsl(preserved)).get(FILTERS_PARAMETER, "")))
        return urlencode({FILTERS_PARAMETER: urlencode(filters | parameters), **parameters})

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, self._with_sidebar(request, extra_context))
        error_url = f"{request.path}?{ERROR_FLAG}=1"
        return HttpResponseRedirect(carrying(error_url)) if response.headers.get("Location") == error_url else response

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        context = self._with_sidebar(request, extra_context)
        return super().changeform_view(request, object_id, form_url or request.get_full_path(), context)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().delete_view(request, object_id, self._with_sidebar(request, extra_context))

    def _with_sidebar(self, request: HttpRequest, context: dict[str, Any] | None) -> dict[str, Any]:
        """Return the context for a view of Django's own, with our links in the sidebar."""
        sidebar = {"available_apps": self.context_of_site(request)["available_apps"]} if carried_parameters() else {}
        return sidebar | (context or {})

    def context_of_site(self, request: HttpRequest) -> dict[str, Any]:
        """Return the site's context for every page. The sidebar's links to our pages carry our parameters."""
        context: dict[str, Any] = self.admin_site.each_context(request)
        our_apps = [
            app for app in context["available_apps"] if app["app_label"] == self.opts.app_label and carried_parameters()
        ]
        for app in our_apps:
            for model in app["models"]:
                model.update({name: carrying(model[name]) for name in ("admin_url", "add_url") if model.get(name)})
        return context

    def context(self, request: HttpRequest, subject: object, *, title: str) -> dict[str, Any]:
        """Return the context that Django's templates need. `subject` is the last of the breadcrumbs."""
        return {
            **self.context_of_site(request),
            "title": title,
            "original": subject,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }

    def show(
        self, request: HttpRequest, template: str, subject: object, content: dict[str, Any], *, title: str
    ) -> HttpResponse:
        """Show a page from one of our templates, with this content."""
        context = self.context(request, subject, title=title) | content
        return TemplateResponse(request, f"admin/django_skipqueue/{template}", context)

    def ask(self, request: HttpRequest, *, title: str, subject: str, **content: Any) -> HttpResponse:
        """Ask for confirmation.

        `subject` is also the label of the button. By default, the answer is posted to the current URL, and the cancel
        link leads to the list.
        """
        defaults = {"can_be_done": True, "target": request.get_full_path(), "back": self.address("changelist")}
        return self.show(request, "job/confirm.html", subject, defaults | content, title=title)

    def _full_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_addition(request, _as_logged(obj), message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, _as_logged(obj), message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        return super().log_deletions(request, cast("Any", [_as_logged(obj) for obj in queryset]))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        pk = unquote(object_id)
        # Django's template contains `?{{ page_var }}=2`, so `page_var` can contain more parameters.
        links = {"page_var": "&".join(filter(None, [urlencode(carried_parameters()), PAGE_VAR]))}
        context = self._with_sidebar(request, links | (extra_context or {}))
        if logged_id(pk) == pk:
            return super().history_view(request, object_id, context)
        content_type = ContentType.objects.get_for_model(self.model)
        entries = LogEntry.objects.filter(content_type=content_type, object_id=logged_id(pk)).select_related("user")
        page = Paginator(entries.order_by("action_time"), HISTORY_PAGE_SIZE).get_page(request.GET.get(PAGE_VAR, 1))
        entries_of_page = {
            "action_list": page,
            "page_range": page.paginator.get_elided_page_range(page.number),
            "pagination_required": page.paginator.num_pages > 1,
        }
        return super().history_view(request, object_id, entries_of_page | context)


class ReadOnlyViews(OwnViews):
    """The base of admin classes whose rows nobody can add, edit or delete."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _as_logged(obj: Any) -> Any:
    logged_object = copy(obj)
    logged_object.pk = logged_id(obj.pk)  # Django's log stores this text as the object's id
    return logged_object


READ = ("GET", "HEAD")
READ_OR_CHANGE = (*READ, "POST")


def _everybody(_model_admin: Any, _request: HttpRequest) -> bool:
    return True


def guarded(*methods: str, may: Callable[[Any, HttpRequest], bool] = _everybody) -> Callable[[View], View]:
    """Decorate an admin view so that it is only open to users who may view the model and for whom `may` is true.

    `methods`: the HTTP methods that the view accepts; if there are none, it accepts all methods.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded_view(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if methods and request.method not in methods:
                return HttpResponseNotAllowed(methods)
            if not (self.has_view_permission(request) and may(self, request)):
                raise PermissionDenied
            return view(self, request, *args, **kwargs)

        return guarded_view

    return decorate


VOLATILE = re.compile(rb'name="csrfmiddlewaretoken" value="[^"]*"|<span data-volatile>[^<]*</span>')
"""Matches content that differs on each request: tokens, and elements with the attribute `data-volatile`."""


def refreshing(view: View) -> View:
    """Decorate an admin view so that its pages have an ETag. A GET with `If-None-Match` is answered with 304."""

    @wraps(view)
    def refreshing_view(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(self, request, *args, **kwargs)
        if request.method not in ("GET", "HEAD") or response.status_code != 200:
            return response
        if isinstance(response, TemplateResponse):
            response.render()
        digest = hashlib.sha256(VOLATILE.sub(b"", response.content), usedforsecurity=False)
        etag = response.headers["ETag"] = f'"{digest.hexdigest()[:32]}"'
        not_modified = get_conditional_response(request, etag=etag, response=response)
        return response if not_modified is None else not_modified

    return refreshing_view
