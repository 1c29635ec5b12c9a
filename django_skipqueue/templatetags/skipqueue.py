"""For templates of the admin: `{% load skipqueue %}{% queue_notices %}` says what an operator has to see.

Invariant: it says nothing to those who may see neither jobs nor workers, nor where the queue cannot be asked.
"""

from typing import Any

from django import template
from django.template.context import Context

register = template.Library()


@register.inclusion_tag("admin/django_skipqueue/notices.html", takes_context=True)
def queue_notices(context: Context, *, workers: bool = True) -> dict[str, Any]:
    """Jobs that wait for a worker, queues that are jammed and, if `workers`, those that are not heard of."""
    from ..admin.health.notices import lookout  # a project without the admin imports this module, too

    request: Any = context.get("request")
    user = getattr(request, "user", None)
    if user is None or not (
        user.has_perm("django_skipqueue.view_job") or user.has_perm("django_skipqueue.view_worker")
    ):
        return {}
    return {
        "notices": lookout.notices(),
        "tells_workers": workers,
        "may_view_jobs": user.has_perm("django_skipqueue.view_job"),
        "may_view_workers": user.has_perm("django_skipqueue.view_worker"),
    }
