"""`Worker`: one process that runs jobs. `WorkerRequest`: an operator's request to a worker process.

A request has its own row, not a column of the worker's row. So if the transaction that makes a request stays open, it
does not lock the worker's row, and cannot block the worker's heartbeats.
"""

from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import F, Func, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..queue.store import Store
from .expressions import are_times
from .stored_json import StoredJSON


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Filters for workers."""

    def live(self, *, worker_timeout: float | None = None) -> "WorkerQuerySet":
        """Workers with a heartbeat in the last `worker_timeout` seconds (default: the setting)."""
        timeout = timedelta(seconds=settings.worker_timeout if worker_timeout is None else worker_timeout)
        return self.filter(heartbeat_at__gt=Now() - timeout, is_external=False)

    def with_requests(self) -> "WorkerQuerySet":
        """Add to each worker the attribute `requested`: `restart`, `stop`, or empty."""
        requests = WorkerRequest._base_manager.filter(worker_id=OuterRef("pk"))
        return self.annotate(
            requested=Coalesce(Subquery(requests.values("request")), Value(""), output_field=models.TextField())
        )


_WorkerManager = models.Manager.from_queryset(WorkerQuerySet)


class WorkerManager(_WorkerManager["Worker"]):
    """`Worker.objects`: the processes that run jobs, in the queue's database."""

    def get_queryset(self) -> WorkerQuerySet:
        """All workers in the queue's database."""
        return WorkerQuerySet(self.model, using=self._db or settings.database)


class Worker(models.Model):
    """One worker process. It and its supervisor write its heartbeats. Without heartbeats, its jobs are recovered.

    A carrier, an external system that holds jobs, also has a row, with `is_external`, although it is not one of our
    worker processes.
    """

    id = models.TextField(primary_key=True, editable=False)
    """`NAME:12 hex digits`. Each process gets a new id, so that the id always tells which process ran a job."""
    name = models.TextField(_("name"))
    hostname = models.TextField(_("host"))
    pid = models.IntegerField(_("process id"))
    queues = StoredJSON(_("queues"), default=list)
    concurrency = models.IntegerField(_("concurrency"))
    """How many jobs the process runs at once. 0 if it runs no jobs, but passes them on to an external system."""
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_default=Now())
    memory_mb = models.IntegerField(_("memory in MiB"), null=True)
    """The memory of the process when its supervisor last wrote the heartbeat; only on systems with /proc."""
    jobs_done = models.BigIntegerField(_("jobs done"), db_default=0)
    """The number of attempts that the process had settled at the last heartbeat."""
    deployment = models.TextField(_("deployment"), db_default="")
    """The setting `DEPLOYMENT` of the process; empty if it is not set."""
    version = models.TextField(_("version"), db_default="")
    """The version of the package in the process; empty for a version that did not write it."""
    is_external = models.BooleanField(_("external"), db_default=False, editable=False)
    """Whether the row is for an external system. It is permanent, and its jobs are not recovered after a timeout."""

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
        """Let this process finish its jobs, however long they take, then replace it. Returns whether its row exists.

        Its supervisor is notified, and acts within about a second; without notifications, at its next heartbeat.
        """
        return self._store().request_of_worker(self.pk, "restart")

    def stop(self) -> bool:
        """Stop the `runworker` command of this process, as SIGTERM does. Returns whether the worker's row exists."""
        return self._store().request_of_worker(self.pk, "stop")

    def _store(self) -> Store:
        return Store(self._state.db or settings.database)

    def is_live(self, now: Any, worker_timeout: timedelta) -> bool:
        """Whether the last heartbeat is younger than `worker_timeout`. `now` is the database's time."""
        return bool(self.heartbeat_at > now - worker_timeout)


class WorkerRequest(models.Model):
    """One request to one worker. The row is deleted once the worker has ended."""

    worker_id = models.TextField(primary_key=True)
    """The id of the worker. Not a foreign key, because the check of a foreign key would lock the worker's row."""
    request = models.TextField()
    """`restart` or `stop`."""

    class Meta:
        db_table = "skipqueue_worker_request"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.request} {self.worker_id}"
