"""`JobBatch`, the table of batches; the column of batches on the job row; and the table of dependencies between jobs.

Only `parts.batches.finish` writes the rows of batches. Users work with `django_skipqueue.Batch`.
"""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...migrations._postgresql import BigIntegers
from ...models.expressions import are_times
from ...models.stored_json import StoredJSON


class BatchColumn(models.Model):
    """The batch of a job."""

    batch_id = models.BigIntegerField(_("batch"), null=True)

    class Meta:
        abstract = True
        indexes = (
            models.Index(
                # Used to check whether a batch is done, to count its progress, and to list its jobs in the admin.
                fields=["batch_id", "status", "id"],
                name="skipqueue_job_batch",
                condition=Q(batch_id__isnull=False),
            ),
        )


class JobBatchManager(models.Manager["JobBatch"]):
    """`JobBatch.objects`: the batches in the queue's database."""

    def get_queryset(self) -> "models.QuerySet[JobBatch]":
        """Return all batches."""
        return models.QuerySet(self.model, using=self._db or settings.database)


class JobBatch(models.Model):
    """A group of jobs. A job's `batch_id` is not a foreign key, because that would lock the batch's row."""

    id = models.BigAutoField(primary_key=True)
    name = models.TextField(_("name"), db_default="")
    parent_id = models.BigIntegerField(_("outer batch"), null=True)
    """The id of the outer batch, which waits for this batch; `None` if there is none."""
    callbacks = StoredJSON(_("callbacks"), default=dict)
    """The calls to enqueue, by `on_success`, `on_failure` and `on_finish`."""
    created_at = models.DateTimeField(_("created at"), db_default=Now())
    finished_at = models.DateTimeField(_("finished at"), null=True)
    callback_ids = BigIntegers(_("callback jobs"), null=True)
    """The ids of the jobs that were enqueued for the callbacks; `None` if there are none."""
    completed = models.BigIntegerField(_("completed"), null=True)
    """How many jobs, including those of inner batches, had completed when the batch ended; `None` before that."""
    failed = models.BigIntegerField(_("failed"), null=True)
    discarded = models.BigIntegerField(_("discarded"), null=True)

    objects = JobBatchManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_batch"
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        default_permissions = ("view",)
        indexes = (
            models.Index(fields=["id"], name="skipqueue_batch_open", condition=Q(finished_at__isnull=True)),
            models.Index(fields=["parent_id"], name="skipqueue_batch_inner", condition=Q(parent_id__isnull=False)),
            models.Index(fields=["finished_at"], name="skipqueue_batch_prune", condition=Q(finished_at__isnull=False)),
            models.Index(  # for the admin
                fields=["id"], name="skipqueue_batch_failures", condition=Q(failed__gt=0) | Q(discarded__gt=0)
            ),
        )
        constraints = (
            models.CheckConstraint(name="skipqueue_batch_times", condition=are_times("created_at", "finished_at")),
        )

    def __str__(self) -> str:
        return f"{self.name or _('batch')} #{self.pk}"


class Dependency(models.Model):
    """A row says that one job waits for another job. It is deleted together with the waiting job."""

    pk = models.CompositePrimaryKey("job_id", "position")
    job_id = models.BigIntegerField()
    """The job that waits."""
    position = models.IntegerField()
    needs_job_id = models.BigIntegerField()
    after_failure = models.TextField()
    """`wait`, `discard` or `run`."""
    is_met = models.BooleanField(db_default=False)
    pruned_as = models.TextField(null=True)  # noqa: DJ001 (NULL: the needed job exists, or was deleted)
    """If the needed job was pruned, its last status."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_dependency"
        default_permissions = ()
        indexes = (
            models.Index(
                fields=["needs_job_id", "after_failure", "job_id"],
                name="skipqueue_dependency_unmet",
                condition=Q(is_met=False),
            ),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} needs {self.needs_job_id}"


class PrunedOfBatch(models.Model):
    """How many jobs of a batch a prune has deleted, by status. Prunes only insert rows, so they wait for no lock."""

    id = models.BigAutoField(primary_key=True)
    batch_id = models.BigIntegerField()
    status = models.TextField()
    jobs = models.BigIntegerField()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_batch_pruned"
        default_permissions = ()
        indexes = (models.Index(fields=["batch_id"], name="skipqueue_batch_pruned_of"),)

    def __str__(self) -> str:
        return f"{self.jobs} {self.status} of batch {self.batch_id}"
