"""The permissions on jobs.

View, add and delete are Django's own permissions, retry and discard the model's. Each verb names the one that it needs.
"""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.http import HttpRequest

from ....models import Job, Status
from ..verbs.table import DELETE
from ..verbs.verb import Verb

if TYPE_CHECKING:
    JobModelAdmin = admin.ModelAdmin[Job]
else:
    JobModelAdmin = admin.ModelAdmin


class JobPermissions(JobModelAdmin):
    """Nobody adds or edits a job; everything else has a permission."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """A running job is not deleted: a worker holds it."""
        return super().has_delete_permission(request, obj) and (obj is None or obj.status != Status.RUNNING)

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        """Whether the user may apply the verb. A user who may not view jobs may not change them either."""
        if verb is DELETE:  # a project may override the method that Django calls
            allowed = self.has_delete_permission(request)
        else:
            codename = get_permission_codename(verb.permission, self.opts)
            allowed = request.user.has_perm(f"{self.opts.app_label}.{codename}")
        return allowed and self.has_view_permission(request)
