"""`Incident`: a problem of the verdict, from its beginning until its end was announced."""

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
    """`Incident.objects`: the problems of the queue's database."""

    def get_queryset(self) -> IncidentQuerySet:
        """All of them, and the row of the last check."""
        return IncidentQuerySet(self.model, using=self._db or settings.database)


class Incident(models.Model):
    """The time for which a rule finds a problem. The row is deleted when the end was announced.

    The row with an empty rule is no incident: its `since` is the time of the last check by a supervisor.
    """

    pk = models.CompositePrimaryKey("rule", "subject")
    rule = models.TextField(_("rule"))
    """The code of the rule."""
    subject = models.TextField(_("subject"))
    """The queue, task, key or worker that has the problem; empty: the rule finds one problem at most."""
    severity = models.TextField(_("severity"), db_default="")
    """`critical` or `warning`, as it was found last."""
    title = models.TextField(_("title"), db_default="")
    """The sentence of the problem, as it was found last."""
    since = models.DateTimeField(_("since"), db_default=Now())
    found_at = models.DateTimeField(db_default=Now())
    """When a check found it first."""
    raised_at = models.DateTimeField(null=True)
    """`None`: the problem does not last for long enough yet."""
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
        return f"{self.rule} {self.subject}".strip()
