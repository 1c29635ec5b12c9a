"""The columns and indexes that limits add to the tables of jobs and queues."""

from django.db import models
from django.db.models import BooleanField, Func, Q, SmallIntegerField
from django.utils.translation import gettext_lazy as _

from .columns import HOLDS, RANK

HALTS = Q(status="failed", limit_kind="halting")
"""Selects failed jobs at which a sequence has halted, until an operator retries or discards the job. Index: halted."""

HOLDS_PERMIT = Q(Func(template=HOLDS, output_field=BooleanField()))
"""The condition that a job holds a permit of its key: see `parts.limits.admit`. Index: limit_held."""

LIMIT_RANK = Func(template=RANK, output_field=SmallIntegerField())
"""The order in which the blocked jobs of a key are admitted; then the order of ids. Index: limit_waiting."""


class LimitColumns(models.Model):
    """The limit of a job."""

    limit_key = models.TextField(_("limit key"), null=True)  # noqa: DJ001 (NULL: no limit)
    limit_kind = models.TextField(_("kind of limit"), null=True)  # noqa: DJ001 (NULL: no limit)
    """`concurrency`; `fair`; `sequence`; or `halting`: a sequence that stops when one of its jobs fails."""
    capacity = models.SmallIntegerField(_("capacity"), null=True)
    """How many jobs of the key may be queued or running."""

    class Meta:
        abstract = True
        indexes = (
            models.Index(
                fields=["limit_key"],
                name="skipqueue_job_limit_held",
                condition=Q(limit_key__isnull=False) & HOLDS_PERMIT,
            ),
            models.Index(
                "limit_key",
                LIMIT_RANK,
                "id",
                name="skipqueue_job_limit_waiting",
                condition=Q(gate="limit", limit_key__isnull=False),
            ),
            models.Index(
                # The failed jobs for which their sequences have halted: `parts.limits.states`.
                fields=["finished_at", "id"],
                name="skipqueue_job_halted",
                condition=HALTS,
            ),
        )
        constraints = (
            # A negative number would break the statements that admit jobs.
            models.CheckConstraint(name="skipqueue_job_capacity", condition=Q(capacity=None) | Q(capacity__gte=0)),
        )


class LimitedQueue(models.Model):
    """The limit of a queue."""

    concurrency = models.SmallIntegerField(_("jobs at once"), null=True)
    """How many jobs of the queue may run at once; 0 means unlimited; `None` means the limit of the settings."""

    class Meta:
        abstract = True
        constraints = (
            models.CheckConstraint(
                # A value that `limit` refuses would break the statements that admit jobs of all queues.
                name="skipqueue_queue_limits",
                condition=Q(concurrency__isnull=True) | Q(concurrency__gte=0),
            ),
        )
