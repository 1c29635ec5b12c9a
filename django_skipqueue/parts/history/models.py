"""The tables of the history (roll-ups): counts of what happened to jobs, by minute, by hour, and since the start."""

from enum import IntEnum

from django.db import models
from django.db.models.functions import Now

from ...migrations._postgresql import BigIntegers


class Span(IntEnum):
    """How many seconds a row covers; 0 stands for all time."""

    EVER = 0
    MINUTE = 60
    HOUR = 3600


class RollUp(models.Model):
    """Counts of what happened to one task's jobs in one queue: in one minute, in one hour, or since the beginning.

    An empty `task` stands for all tasks of the queue. An empty `queue_name` stands for all queues.
    """

    pk = models.CompositePrimaryKey("span", "queue_name", "task", "starts_at")
    span = models.SmallIntegerField()
    queue_name = models.TextField()
    task = models.TextField()
    starts_at = models.DateTimeField()
    changed_at = models.DateTimeField(db_default=Now())
    enqueued = models.BigIntegerField(db_default=0)
    completed = models.BigIntegerField(db_default=0)
    retried = models.BigIntegerField(db_default=0)
    snoozed = models.BigIntegerField(db_default=0)
    failed = models.BigIntegerField(db_default=0)
    discarded = models.BigIntegerField(db_default=0)
    recovered = models.BigIntegerField(db_default=0)
    deaths = models.BigIntegerField(db_default=0)
    lost = models.BigIntegerField(db_default=0)
    waited = BigIntegers(null=True)
    ran = BigIntegers(null=True)
    waited_seconds = models.FloatField(db_default=0.0)
    ran_seconds = models.FloatField(db_default=0.0)
    waited_longest = models.FloatField(null=True)
    ran_longest = models.FloatField(null=True)
    claims = models.BigIntegerField(db_default=0)
    claim_times = BigIntegers(null=True)
    claim_seconds = models.FloatField(db_default=0.0)
    depth = models.BigIntegerField(null=True)
    oldest_seconds = models.FloatField(null=True)
    claim_pages = models.BigIntegerField(null=True)
    claim_rows = models.BigIntegerField(null=True)

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_rollup"
        default_permissions = ()
        indexes = (models.Index(fields=["span", "starts_at"], name="skipqueue_rollup_prune"),)

    def __str__(self) -> str:
        return f"{self.queue_name or '*'} {self.task or '*'} {self.starts_at:%Y-%m-%d %H:%M} {Span(self.span).name}"


class FailureRollUp(models.Model):
    """Counts of attempts that failed with one cause: in one minute, in one hour, or since the beginning."""

    pk = models.CompositePrimaryKey("span", "task", "exception", "place", "starts_at")
    span = models.SmallIntegerField()
    task = models.TextField()
    exception = models.TextField()
    place = models.TextField()
    starts_at = models.DateTimeField()
    number = models.BigIntegerField()
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    last_line = models.IntegerField(null=True)
    last_job_id = models.BigIntegerField()
    first_deployment = models.TextField(db_default="")
    last_deployment = models.TextField(db_default="")
    acknowledged_at = models.DateTimeField(null=True)
    """This field, and all fields below it, are only set in rows with the span `EVER`."""
    acknowledged_by = models.TextField(db_default="")
    note = models.TextField(db_default="")
    acknowledged_number = models.BigIntegerField(null=True)
    """The number of failed attempts in the ten minutes before the acknowledgement."""
    came_back_at = models.DateTimeField(null=True)
    """When an acknowledged cause failed again for the first time after it had stopped."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_failure_rollup"
        default_permissions = ()
        permissions = (("acknowledge_cause", "Can acknowledge causes of failures"),)
        indexes = (models.Index(fields=["span", "starts_at"], name="skipqueue_failure_rollup_prune"),)

    def __str__(self) -> str:
        return f"{self.exception} in {self.place} {self.starts_at:%Y-%m-%d %H:%M} {Span(self.span).name}"


class Deployment(models.Model):
    """When the first supervisor with this value of the setting `DEPLOYMENT` started."""

    name = models.TextField(primary_key=True)
    first_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_deployment"
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class RollUpProgress(models.Model):
    """Its single row says up to which id supervisors have counted enqueued jobs. See `rollups.COUNT_ENQUEUED`."""

    id = models.SmallIntegerField(primary_key=True, db_default=1)
    counted_to = models.BigIntegerField()
    ready_to = models.BigIntegerField()
    ready_xid = models.BigIntegerField()
    seen_to = models.BigIntegerField()
    ready_at = models.DateTimeField(db_default=Now())
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_rollup_progress"
        default_permissions = ()

    def __str__(self) -> str:
        return f"counted to job {self.counted_to}"
