"""The table of schedules, by which supervisors enqueue tasks at certain times."""

from datetime import timedelta

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...migrations._postgresql import BigIntegers
from ...models.expressions import are_times
from ...models.stored_json import StoredJSON


class Source(models.TextChoices):
    """Where a schedule is defined."""

    CODE = "code", _("code")
    SETTINGS = "settings", _("settings")
    ADMIN = "admin", _("admin")


class CatchUp(models.TextChoices):
    """What a supervisor enqueues for times that passed while no supervisor ran."""

    LATEST = "latest", _("one job for the latest")
    ALL = "all", _("one job for each, at most 100")
    SKIP = "skip", _("nothing")


class Overlap(models.TextChoices):
    """What a supervisor does while the last job is unfinished."""

    ALLOW = "allow", _("another job is enqueued")
    SKIP = "skip", _("nothing is enqueued")


SCHEDULE_TIMES = (
    "created_at", "next_run_at", "fire_at", "last_run_at", "failing_since", "skipped_at", "paused_at", "confirmed_at",
    "retired_at",
)  # fmt: skip


class ScheduleManager(models.Manager["Schedule"]):
    """`Schedule.objects`: the schedules in the queue's database."""

    def get_queryset(self) -> "models.QuerySet[Schedule]":
        """Return all schedules."""
        return models.QuerySet(self.model, using=self._db or settings.database)


class Schedule(models.Model):
    """A task that supervisors enqueue by a cron expression or at an interval.

    Supervisors store the schedules of code and settings. Users add more schedules in the admin.
    """

    name = models.TextField(_("name"), unique=True)
    task = models.TextField(_("task"))
    args = StoredJSON(_("positional arguments"), db_default=models.Value([], models.JSONField()))
    kwargs = StoredJSON(_("keyword arguments"), db_default=models.Value({}, models.JSONField()))
    cron = models.TextField(_("cron expression"), db_default="")
    interval = models.DurationField(_("interval"), null=True)
    timezone = models.TextField(_("time zone"), db_default="UTC")
    catch_up = models.TextField(_("for times that were missed"), choices=CatchUp, db_default="latest")
    overlap = models.TextField(_("while the last job is unfinished"), choices=Overlap, db_default="allow")
    jitter = models.FloatField(_("random delay in seconds, at most"), db_default=0.0)
    source = models.TextField(_("source"), choices=Source, db_default="admin")
    created_at = models.DateTimeField(_("created at"), db_default=Now())
    next_run_at = models.DateTimeField(_("next run"), null=True)
    """The next time by the definition; `None` if there is none."""
    fire_at = models.DateTimeField(null=True)
    """When a supervisor next tries to fire: at `next_run_at`, or later after an error."""
    last_run_at = models.DateTimeField(_("last run"), null=True)
    """When a supervisor or a user last enqueued a job."""
    last_job_id = models.BigIntegerField(_("last job"), null=True)
    earlier_job_ids = BigIntegers(null=True)
    """At most four jobs before the last job, the newest first."""
    failing_since = models.DateTimeField(null=True)
    """When the first of the jobs that have failed in a row was enqueued, if it came before `earlier_job_ids`."""
    skipped_at = models.DateTimeField(_("last skipped"), null=True)
    """When a supervisor last enqueued no job because another job was unfinished."""
    error = models.TextField(_("error"), db_default="")
    """Why the schedule cannot fire; empty if it can."""
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), db_default="")
    digest = models.TextField(db_default="")
    """A hash of the definition in code or settings. Only supervisors with this definition fire the row."""
    previous_digest = models.TextField(db_default="")
    """The digest of the definition that this definition has replaced."""
    confirmed_at = models.DateTimeField(null=True)
    """When a supervisor last confirmed that its code has this definition."""
    retired_at = models.DateTimeField(_("not in the code since"), null=True)

    objects = ScheduleManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = (("run_schedule", "Can pause, resume and run schedule"),)
        indexes = (
            models.Index(fields=["fire_at", "id"], name="skipqueue_schedule_fire", condition=Q(paused_at__isnull=True)),
        )
        constraints = (
            models.CheckConstraint(
                name="skipqueue_schedule_moment",
                condition=Q(Q(cron="") & Q(interval__isnull=False)) | Q(~Q(cron="") & Q(interval__isnull=True)),
            ),
            models.CheckConstraint(
                name="skipqueue_schedule_times",
                condition=are_times(*SCHEDULE_TIMES)
                & (Q(interval=None) | Q(interval__range=(timedelta(0), timedelta(days=36_600))))
                & Q(jitter__range=(0, 36_600 * 86_400)),
            ),
        )

    def __str__(self) -> str:
        return self.name
