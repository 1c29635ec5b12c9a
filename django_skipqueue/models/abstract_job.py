"""The columns of a job that stay with it when it moves to the archive: all but those by which it is claimed."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..events.job_names import job_name
from ..values.codec import shorten
from ..values.notes import Progress, progress_of
from ..values.records import handle_of, worker_name
from .status import Status
from .stored_json import StoredJSON


class AbstractJob(models.Model):
    """A job, in the job table or in the archive."""

    queue_name = models.TextField(_("queue"))
    task = models.TextField(_("task"))
    args = StoredJSON(_("positional arguments"), default=list)
    kwargs = StoredJSON(_("keyword arguments"), default=dict)
    status = models.TextField(_("status"), choices=Status)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    attempts = models.SmallIntegerField(_("attempts"), db_default=0)
    max_attempts = models.SmallIntegerField(_("maximum of attempts"), db_default=10)
    run_after = models.DateTimeField(_("run after"), db_default=Now())
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    locked_by = models.TextField(_("worker"), db_default="")
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    result = StoredJSON(_("result"), null=True)
    last_error = models.TextField(_("last error"), db_default="")
    errors = StoredJSON(_("errors"), db_default=models.Value([], models.JSONField()))
    progress = StoredJSON(_("progress"), null=True)
    logs = StoredJSON(_("logs"), null=True)
    timeout = models.FloatField(_("timeout"), null=True)
    retention = StoredJSON(_("retention"), null=True)
    unique_key = models.TextField(_("unique key"), null=True)  # noqa: DJ001 (NULL is what a unique index ignores)
    unique_seconds = models.FloatField(_("seconds of the unique key"), null=True)
    limit_key = models.TextField(_("limit key"), null=True)  # noqa: DJ001 (NULL: no limit)
    limit_kind = models.TextField(_("kind of limit"), null=True)  # noqa: DJ001 (NULL: no limit)
    capacity = models.SmallIntegerField(_("capacity"), null=True)
    rate_key = models.TextField(_("rate key"), null=True)  # noqa: DJ001 (NULL: no rate)
    rate_interval = models.FloatField(_("interval of the rate"), null=True)
    rate_burst = models.SmallIntegerField(_("burst of the rate"), null=True)
    metadata = StoredJSON(_("metadata"), db_default=models.Value({}, models.JSONField()))
    operations = StoredJSON(_("operations"), null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{shorten(self.task, 200)} #{self.pk}"

    @property
    def handle(self) -> str:
        """A text that names the job with its database, such as `queue_1:42`: see `Job.objects.by_handle`."""
        return handle_of(self._state.db or settings.database, self.pk)

    @property
    def shown_id(self) -> str:
        """The id alone; the handle if several databases hold queues."""
        return job_name(self._state.db or settings.database, self.pk)

    @property
    def current_progress(self) -> Progress | None:
        """The progress of the attempt that runs, and once the job is finished, of the last one; `None` without any."""
        return progress_of(self.progress)

    @property
    def worker_name(self) -> str:
        """The name of the worker that holds the job, or held it last; for a loop written by hand, its `worker_id`."""
        return worker_name(self.locked_by)
