"""`RateBucket`, the tokens of one rate key; and the columns that rate limits add to the tables of jobs and queues."""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from ...models.expressions import MINUS_PRIORITY
from ...values.settings import INTERVALS


class RateBucket(models.Model):
    """How many tokens of a key are taken. A key without a row has all of its tokens. See `parts.rates.admit`."""

    key = models.TextField(primary_key=True)
    full_at = models.DateTimeField()
    """When the key has all of its tokens again."""
    due_at = models.DateTimeField(null=True)
    """When the next job may be admitted. `None` if no job is known to wait."""

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_rate"
        default_permissions = ()
        indexes = (models.Index(fields=["due_at", "full_at"], name="skipqueue_rate_due"),)

    def __str__(self) -> str:
        return self.key


class Tokens:
    """Moves the times of rate limits when a test moves its clock, as a `testing.run.Clock`."""

    def __init__(self, alias: str) -> None:
        self._buckets = RateBucket.objects.using(alias)

    def due(self) -> list[datetime]:
        return [due_at for due_at in self._buckets.values_list("due_at", flat=True) if due_at is not None]

    def put_forward(self, passed: timedelta) -> None:
        self._buckets.update(full_at=F("full_at") - passed, due_at=F("due_at") - passed)

    def put_to_the_end(self) -> None:
        """Give all keys all of their tokens."""
        self._buckets.all().delete()


class RateColumns(models.Model):
    """The rate of a job."""

    rate_key = models.TextField(_("rate key"), null=True)  # noqa: DJ001 (NULL: no rate)
    rate_interval = models.FloatField(_("interval of the rate"), null=True)
    """Seconds until the key gets another token."""
    rate_burst = models.SmallIntegerField(_("burst of the rate"), null=True)
    """The maximum number of tokens in the key's bucket."""

    class Meta:
        abstract = True
        # The jobs that wait for a token, and the jobs that have a token and wait for a worker: see `parts.rates.admit`.
        indexes = (
            models.Index(
                F("rate_key"),
                MINUS_PRIORITY,
                F("run_after"),
                F("id"),
                name="skipqueue_job_rate_waiting",
                condition=Q(gate="rate", rate_key__isnull=False),
            ),
            models.Index(
                fields=["rate_key"],
                name="skipqueue_job_rate_queued",
                condition=Q(status="queued", rate_key__isnull=False),
            ),
        )
        constraints = (
            # An interval out of this range would break the statements that admit jobs.
            models.CheckConstraint(
                name="skipqueue_job_rate_interval", condition=Q(rate_interval=None) | Q(rate_interval__range=INTERVALS)
            ),
        )


class RatedQueue(models.Model):
    """The rate of a queue."""

    rate_interval = models.FloatField(_("interval of the rate"), null=True)
    """Seconds from one start to the next; 0 means unlimited; `None` means the rate of the settings."""
    rate_burst = models.SmallIntegerField(_("burst of the rate"), null=True)
    """How many jobs may start at the same time after a pause."""

    class Meta:
        abstract = True
        constraints = (
            models.CheckConstraint(
                # A value that `rate` refuses would break the statements that admit jobs of all queues.
                name="skipqueue_queue_rates",
                condition=(Q(rate_interval__isnull=True) | Q(rate_interval=0) | Q(rate_interval__range=INTERVALS))
                & (Q(rate_burst__isnull=True) | Q(rate_burst__gte=0)),
            ),
        )
