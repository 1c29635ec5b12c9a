"""Template tags for the admin. `{% load skipqueue %}{% queue_notices %}` shows the verdict on the queue to operators.

Only users who may view jobs see the verdict.
"""

from typing import TYPE_CHECKING, Any

from django import template
from django.template.context import Context
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from ..conf import settings, using_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..console.admin.bar import BarLink

register = template.Library()


@register.inclusion_tag("admin/django_skipqueue/notices.html", takes_context=True)
def queue_notices(context: Context, *, says_all_is_well: bool = False) -> dict[str, Any]:
    """Show the problems of this database's queue, and which other databases have problems.

    If there is no problem, the tag shows nothing, unless `says_all_is_well` is true.
    """
    from ..console.admin.notices import UNFOLDED, ShownProblem, notices_cache
    from ..console.admin.ui.addresses import address_of
    from ..console.rules.rule import Severity

    user = getattr(context.get("request"), "user", None)
    if user is None or not user.has_perm("django_skipqueue.view_job"):
        return {}
    verdict = notices_cache.get()
    problems = [ShownProblem.to(user, problem) for problem in verdict.problems]
    severities, elsewhere = [verdict.severity], []
    for alias, other_verdict in notices_cache.elsewhere().items():
        if not other_verdict.is_well:
            severities.append(other_verdict.severity)
            with using_database(alias):
                elsewhere.append((f"{alias}: {other_verdict}", address_of("job_dashboard", site=_site(context))))
    worst_severity = min(severities, key=lambda severity: severity.rank)
    return {
        "verdict": None if worst_severity == Severity.OK and not says_all_is_well else verdict,
        "severity": worst_severity,
        "database": settings.database,
        "elsewhere": elsewhere,
        "unfolded": problems[:UNFOLDED],
        "folded": problems[UNFOLDED:],
    }


@register.simple_tag(takes_context=True)
def queue_link(context: Context, name: str) -> str:
    """A queue's name. For users who may view queues, it is a link to the queue's page."""
    from ..console.admin.ui.cells import queue_link, shortened

    return queue_link(name) if _may_view(context, "queue") else shortened(name)


@register.simple_tag(takes_context=True)
def worker_link(context: Context, worker_id: str) -> str:
    """A worker's name. For users who may view workers, it is a link to the worker's page."""
    from ..console.admin.ui.cells import shortened, worker_link
    from ..values.records import worker_name

    return worker_link(worker_id) if _may_view(context, "worker") else shortened(worker_name(worker_id))


def _may_view(context: Context, model: str) -> bool:
    request: Any = context.get("request")
    return request is not None and request.user.has_perm(f"django_skipqueue.view_{model}")


@register.simple_tag
def task_link(task: str) -> str:
    """A task's name, as a link to the task's page."""
    from ..console.admin.ui.cells import task_link

    return task_link(task)


@register.simple_tag(takes_context=True)
def queue_address(context: Context, page: str, *args: Any, query: str = "") -> str:
    """The URL of a page in the admin site of this request. Use it as `{% queue_address "job_change" job.pk %}`."""
    from ..console.admin.ui.addresses import address_of

    return address_of(page, *args, query=query, site=_site(context))


def _site(context: Context) -> str | None:
    """The name of the admin site of this request. Django's tag `url` finds it in the same way."""
    request: Any = context.get("request")
    return getattr(request, "current_app", None) or getattr(getattr(request, "resolver_match", None), "namespace", None)


@register.simple_tag
def queue_fields() -> SafeString:
    """Hidden fields that keep the page's carried parameters, because a GET form drops the query of its URL."""
    from ..console.admin.ui.addresses import carried_parameters  # a project may be without the admin

    return format_html_join("", '<input type="hidden" name="{}" value="{}">', carried_parameters().items())


@register.inclusion_tag("admin/django_skipqueue/ui/top.html", takes_context=True)
def queue_top(context: Context) -> dict[str, Any]:
    """Show the navigation bar, and the notices that parts show above the content of every page."""
    from ..console.admin.bar import Bar  # a project may be without the admin
    from ..console.parts import consoles

    request = context["request"]
    notices = [part.over_page(request) for part in consoles() if part.over_page]
    return {"bar": Bar.of(request, _site(context)), "notices": [notice for notice in notices if notice]}


@register.simple_tag(takes_context=True)
def queue_links_below(context: Context) -> "Sequence[BarLink]":
    """Links to the pages below the current entry of the navigation bar."""
    from ..console.admin.bar import Bar

    return Bar.of(context["request"], _site(context)).below
