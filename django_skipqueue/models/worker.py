"""`Worker`: one process that runs jobs."""

from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import F, Func
from django.db.models.functions import Now
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..queue.store import Store
from .expressions import are_times
from .managers import WorkerManager
from .stored_json import StoredJSON


class Worker(models.Model):
    """One worker process. The process and its supervisor write its heartbeat. Without one, its jobs are recovered.

    Who holds jobs and is no worker has a row as well, with `is_external`.
    """

    id = models.TextField(primary_key=True, editable=False)
    """`NAME:12 hex digits`, new at every start of a process, so that it always identifies who ran a job."""
    name = models.TextField(_("name"))
    hostname = models.TextField(_("host"))
    pid = models.IntegerField(_("process id"))
    queues = StoredJSON(_("queues"), default=list)
    concurrency = models.IntegerField(_("concurrency"))
    """How many slots it has; 0: it runs no jobs, and hands those that it claims on to somebody else."""
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_default=Now())
    memory_mb = models.IntegerField(_("memory in MiB"), null=True)
    """The resident size of the process at the last heartbeat of its supervisor, on a system with /proc."""
    jobs_done = models.BigIntegerField(_("jobs done"), db_default=0)
    """How many attempts the process had settled at that time."""
    is_external = models.BooleanField(_("external"), db_default=False, editable=False)
    """Whether the row stands for no process of ours: it is permanent, and its jobs are not recovered by age."""

    objects = WorkerManager()

    class Meta:
        db_table = "skipqueue_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        constraints = (
            models.CheckConstraint(name="skipqueue_worker_times", condition=are_times("started_at", "heartbeat_at")),
            models.CheckConstraint(
                name="skipqueue_worker_queues",
                condition=Exact(Func(F("queues"), function="jsonb_typeof", output_field=models.TextField()), "array"),
            ),
        )

    def __str__(self) -> str:
        return self.name

    def restart(self) -> bool:
        """Have this process finish its jobs, however long they take, and be replaced. Returns whether its row exists.

        Its supervisor is notified, and acts within about a second; without notifications, at its next heartbeat.
        """
        return self._store().request_of_worker(self.pk, "restart")

    def stop(self) -> bool:
        """Have the `runworker` that this process belongs to stop, as after SIGTERM. Returns whether the row exists."""
        return self._store().request_of_worker(self.pk, "stop")

    def _store(self) -> Store:
        return Store(self._state.db or settings.database)

    def is_live(self, now: Any, worker_timeout: timedelta) -> bool:
        """Whether the last heartbeat is younger than `worker_timeout`. `now` is the database's time."""
        return bool(self.heartbeat_at > now - worker_timeout)
