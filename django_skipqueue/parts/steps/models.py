"""`JobStep`, `JobSignal` and `JobChild`: what is recorded of a job that goes on where it stopped.

These rows are deleted together with their job. Only the functions of `parts.steps` write them.
"""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...models.stored_json import StoredJSON


class JobStep(models.Model):
    """A step of a job: a step that has ended, or the step at which the job is."""

    class Kind(models.TextChoices):
        """The method of `JobContext` that has made the step."""

        STEP = "step", _("step")
        SLEEP = "sleep", _("sleep")
        WAIT = "wait", _("wait")
        RUN = "run", _("run")
        EACH = "each", _("each")

    pk = models.CompositePrimaryKey("job_id", "name")
    job_id = models.BigIntegerField()
    name = models.TextField()
    kind = models.TextField(choices=Kind)
    number = models.IntegerField()
    """The place among the steps of the job: 1, 2, …"""
    attempt = models.IntegerField()
    """The number of the attempt that has recorded the step, counted over the whole life of the job."""
    started_at = models.DateTimeField()
    recorded_at = models.DateTimeField(null=True)
    """`None` while the job is at this step."""
    result = StoredJSON(null=True)
    """What the step has returned; for `each`, how far the loop has come."""
    error = StoredJSON(null=True)
    """An object if the step has failed for good: its signal has not come in time, or a child has failed."""
    wakes_at = models.DateTimeField(null=True)
    """When a sleep, or the time to wait for a signal, is over."""
    is_waiting = models.BooleanField(null=True)
    """True while the job waits for the signal with this name; otherwise NULL."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_step"
        default_permissions = ()
        indexes = (
            models.Index(fields=["started_at"], name="skipqueue_step_waiting", condition=Q(is_waiting=True)),
            models.Index(fields=["wakes_at"], name="skipqueue_step_due", condition=Q(is_waiting=True)),
            models.Index(fields=["wakes_at"], name="skipqueue_step_sleeping", condition=Q(kind="sleep")),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of job {self.job_id}"


class SignalTimes:
    """Moves the timeouts of signals when a test moves its clock. See `testing.run.Clock`."""

    def __init__(self, alias: str) -> None:
        self._steps = JobStep.objects.using(alias).filter(is_waiting=True, wakes_at__isnull=False)

    def due(self) -> list[datetime]:
        """Return the times at which waits for signals time out."""
        return [due for due in self._steps.values_list("wakes_at", flat=True) if due is not None]

    def put_forward(self, passed: timedelta) -> None:
        """Let the waits time out earlier by the time that has passed on the test's clock."""
        self._steps.update(wakes_at=F("wakes_at") - passed)

    def put_to_the_end(self) -> None:
        """Let all waits time out now."""
        self._steps.update(wakes_at=Now())


class JobSignal(models.Model):
    """A named payload that was sent to a job. The job's task takes it by `context.wait`."""

    pk = models.CompositePrimaryKey("job_id", "name")
    job_id = models.BigIntegerField()
    name = models.TextField()
    payload = StoredJSON()
    sent_at = models.DateTimeField()
    by = models.TextField(db_default="")
    """The name of the user who has sent the signal in the admin."""
    reason = models.TextField(db_default="")
    taken_at = models.DateTimeField(null=True)
    """When the task took the signal; `None` before that."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_signal"
        default_permissions = ()
        permissions = (("signal_job", "Can send signals to job"),)
        indexes = (
            models.Index(fields=["job_id", "name"], name="skipqueue_signal_untaken", condition=Q(taken_at=None)),
            models.Index(fields=["sent_at"], name="skipqueue_signal_oldest", condition=Q(taken_at=None)),
        )

    def __str__(self) -> str:
        return f"signal {self.name} of job {self.job_id}"


class JobChild(models.Model):
    """A job that a step of another job has deferred. The step returns its result."""

    pk = models.CompositePrimaryKey("parent_id", "name", "position")
    parent_id = models.BigIntegerField()
    name = models.TextField()
    """The name of the step."""
    position = models.IntegerField()
    job_id = models.BigIntegerField()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_child"
        default_permissions = ()
        indexes = (models.Index(fields=["job_id"], name="skipqueue_child_job"),)

    def __str__(self) -> str:
        return f"job {self.job_id}, a child of job {self.parent_id}"
