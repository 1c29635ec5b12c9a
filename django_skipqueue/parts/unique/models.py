"""The columns and constraints that unique keys add to the job table."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ...models.expressions import is_number

KEY_IS_HELD = Q(unique_key__isnull=False) & (
    Q(unique_seconds__gt=0) | (Q(finished_at__isnull=True) & (Q(unique_seconds__isnull=True) | Q(lease=0)))
)
"""Selects jobs that hold their unique key: see `parts.unique.enqueue`. Index: unique."""


class UniqueColumns(models.Model):
    """The unique key of a job."""

    unique_key = models.TextField(_("unique key"), null=True)  # noqa: DJ001 (NULL is what a unique index ignores)
    unique_seconds = models.FloatField(_("seconds of the unique key"), null=True)

    class Meta:
        abstract = True
        constraints = (
            models.UniqueConstraint(fields=["unique_key"], name="skipqueue_job_unique", condition=KEY_IS_HELD),
            models.CheckConstraint(name="skipqueue_job_unique_seconds", condition=is_number("unique_seconds")),
        )
