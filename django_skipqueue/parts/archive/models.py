"""`ArchivedJob`: a finished job that was pruned from the job table while `SKIPQUEUE["ARCHIVE"]` was set.

Only `Store.prune` writes the rows, and only `drop_partition` deletes them, a month at a time.
"""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...models.job import AbstractJob
from ...models.status import FINISHED, Status
from ...models.stored_json import StoredJSON

_NOT_COMPLETED = [status.value for status in FINISHED if status != Status.COMPLETED]


class ArchivedJobManager(models.Manager["ArchivedJob"]):
    """`ArchivedJob.objects`: the jobs in the archive of the queue's database."""

    def get_queryset(self) -> "models.QuerySet[ArchivedJob]":
        """Return all archived jobs."""
        return models.QuerySet(self.model, using=self._db or settings.database)


class ArchivedJob(AbstractJob):
    """A job that was moved out of the job table. PostgreSQL partitions this table by the month of `finished_at`."""

    id = models.BigIntegerField(primary_key=True)
    """The job's id. In PostgreSQL the primary key is `(id, finished_at)`, because partitions are by time."""
    finished_at = models.DateTimeField(_("finished at"))
    records = StoredJSON(null=True)
    """The rows about the job that parts had in other tables; `None` if there were none."""

    objects = ArchivedJobManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_archivedjob"
        verbose_name = _("archived job")
        verbose_name_plural = _("archived jobs")
        default_permissions = ("view",)
        indexes = (
            models.Index(fields=["finished_at"], name="skipqueue_archivedjob_time"),
            models.Index(fields=["task", "finished_at"], name="skipqueue_archivedjob_task"),
            models.Index(
                fields=["status", "finished_at"],
                name="skipqueue_archivedjob_failed",
                condition=Q(status__in=_NOT_COMPLETED),
            ),
        )
