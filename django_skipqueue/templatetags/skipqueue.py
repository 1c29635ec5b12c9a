"""Tags for templates of the admin: `{% load skipqueue %}{% queue_notices %}` shows the notices for operators.

Invariant: the notices show nothing to users who may view neither jobs nor queues nor workers, or if the queue's
database is unreachable.
"""

from typing import TYPE_CHECKING, Any

from django import template
from django.template.context import Context

if TYPE_CHECKING:
    from ..console.parts import PartPage

register = template.Library()


@register.inclusion_tag("admin/django_skipqueue/notices.html", takes_context=True)
def queue_notices(context: Context, *, workers: bool = True, queues: bool = True) -> dict[str, Any]:
    """Queues without a worker or a free slot; if `queues`, paused queues; if `workers`, those without a heartbeat."""
    from ..console.admin.notices import notices_cache  # a project without the admin also imports this module

    request: Any = context.get("request")
    user = getattr(request, "user", None)
    if user is None or not any(user.has_perm(f"django_skipqueue.view_{name}") for name in ("job", "queue", "worker")):
        return {}
    return {
        "notices": notices_cache.get(),
        "shows_queues": queues,
        "shows_workers": workers,
        "may_view_jobs": user.has_perm("django_skipqueue.view_job"),
        "may_view_queues": user.has_perm("django_skipqueue.view_queue"),
        "may_view_workers": user.has_perm("django_skipqueue.view_worker"),
    }


@register.simple_tag(takes_context=True)
def queue_link(context: Context, name: str) -> str:
    """The name of a queue, with a link to its page for those who may view queues."""
    from ..console.admin.ui.cells import queue_link, shortened  # as above

    return queue_link(name) if _may_view(context, "queue") else shortened(name)


@register.simple_tag(takes_context=True)
def worker_link(context: Context, worker_id: str) -> str:
    """The name of a worker, with a link to its page for those who may view workers."""
    from ..console.admin.ui.cells import shortened, worker_link  # as above
    from ..values.records import worker_name

    return worker_link(worker_id) if _may_view(context, "worker") else shortened(worker_name(worker_id))


def _may_view(context: Context, model: str) -> bool:
    request: Any = context.get("request")
    return request is not None and request.user.has_perm(f"django_skipqueue.view_{model}")


@register.simple_tag
def part_pages() -> "tuple[PartPage, ...]":
    """The pages of the parts beside the list of jobs."""
    from ..console.parts import pages  # as above

    return pages()
