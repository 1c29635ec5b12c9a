"""`Incident`: a limit of the setting `ALERTS` that is exceeded."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Filters for incidents."""

    def open(self) -> "IncidentQuerySet":
        """Incidents that are raised and not over."""
        return self.filter(raised_at__isnull=False, over_at=None)


_IncidentManager = models.Manager.from_queryset(IncidentQuerySet)


class IncidentManager(_IncidentManager["Incident"]):
    """`Incident.objects`: the limits that are exceeded, in the queue's database."""

    def get_queryset(self) -> IncidentQuerySet:
        """All of them, and the row of the last check."""
        return IncidentQuerySet(self.model, using=self._db or settings.database)


class Incident(models.Model):
    """The time for which a limit is exceeded. The row is deleted when the incident is over and that was announced.

    The row with an empty rule is no incident: its `since` is the time of the last check by a supervisor.
    """

    pk = models.CompositePrimaryKey("rule", "queue_name")
    rule = models.TextField(_("rule"))
    queue_name = models.TextField(_("queue"))
    """Empty: all queues that have no limit of their own for this rule."""
    since = models.DateTimeField(_("since"), db_default=Now())
    value = models.FloatField(_("value"), db_default=0.0)
    """As it was found last."""
    threshold = models.FloatField(_("limit"), db_default=0.0)
    raised_at = models.DateTimeField(null=True)
    """`None`: the limit is not exceeded for long enough yet."""
    calm_since = models.DateTimeField(null=True)
    over_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    """When a process claimed the alert that is due."""
    is_announced = models.BooleanField(db_default=False)
    """Whether the beginning was announced."""

    objects = IncidentManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_incident"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.queue_name or '*'}"
