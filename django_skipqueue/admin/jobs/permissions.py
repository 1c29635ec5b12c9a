"""Who may do what with jobs.

View and delete are Django's own permissions, retry and discard the model's; who may retry jobs may change when they are
due. A copy of a job is a new job: `add`.
"""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.http import HttpRequest

from ...models import Job, Status

if TYPE_CHECKING:
    JobModelAdmin = admin.ModelAdmin[Job]
else:
    JobModelAdmin = admin.ModelAdmin


class JobPermissions(JobModelAdmin):
    """Nobody adds or edits a job; everything else is somebody's permission."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Jobs are deferred by code, never typed in."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Jobs change by verbs, never by a form."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """A job that runs is not to be deleted under its worker."""
        return super().has_delete_permission(request, obj) and (obj is None or obj.status != Status.RUNNING)

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Whether the user may press this button, a verb's name. Who may not look may not."""
        allowed: bool = getattr(self, f"has_{verb}_permission")(request)
        return allowed and self.has_view_permission(request)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Whether the user may put jobs back into their queues."""
        return request.user.has_perm("django_skipqueue.retry_job")

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        """Whether the user may make jobs due that wait for a time: it is a retry before its time."""
        return self.has_retry_permission(request)

    def has_postpone_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have jobs wait."""
        return self.has_retry_permission(request)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Whether the user may finish jobs without running them."""
        return request.user.has_perm("django_skipqueue.discard_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may interrupt jobs that run: it discards them."""
        return self.has_discard_permission(request)

    def has_run_again_permission(self, request: HttpRequest) -> bool:
        """Whether the user may enqueue a copy of a job."""
        return request.user.has_perm("django_skipqueue.add_job")
