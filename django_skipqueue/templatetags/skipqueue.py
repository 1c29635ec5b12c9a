"""Tags for templates of the admin: `{% load skipqueue %}{% queue_notices %}` shows the verdict to operators.

Invariant: it shows nothing to users who may not view jobs.
"""

from typing import TYPE_CHECKING, Any

from django import template
from django.template.context import Context

if TYPE_CHECKING:
    from ..console.parts import PartPage

register = template.Library()


@register.inclusion_tag("admin/django_skipqueue/notices.html", takes_context=True)
def queue_notices(context: Context, *, says_all_is_well: bool = False) -> dict[str, Any]:
    """The problems that the verdict names; if there is none, nothing, or that all is well."""
    from ..console.admin.notices import UNFOLDED, ShownProblem, notices_cache  # a project may be without the admin

    user = getattr(context.get("request"), "user", None)
    if user is None or not user.has_perm("django_skipqueue.view_job"):
        return {}
    verdict = notices_cache.get()
    shown = [ShownProblem.to(user, each) for each in verdict.problems]
    return {
        "verdict": None if verdict.is_well and not says_all_is_well else verdict,
        "unfolded": shown[:UNFOLDED],
        "folded": shown[UNFOLDED:],
    }


@register.simple_tag
def task_link(task: str) -> str:
    """The name of a task, as a link to its page."""
    from ..console.admin.ui.cells import task_link  # as above

    return task_link(task)


@register.simple_tag
def part_pages() -> "tuple[PartPage, ...]":
    """The pages of the parts beside the list of jobs."""
    from ..console.parts import pages  # as above

    return pages()
