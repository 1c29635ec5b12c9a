"""`Incident`: a problem that the console has found, from its beginning until its end was announced."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Filters for incidents."""

    def open(self) -> "IncidentQuerySet":
        """Return the incidents that were raised and are not over."""
        return self.filter(raised_at__isnull=False, over_at=None)


_IncidentManager = models.Manager.from_queryset(IncidentQuerySet)


class IncidentManager(_IncidentManager["Incident"]):
    """`Incident.objects`: the incidents in the queue's database."""

    def get_queryset(self) -> IncidentQuerySet:
        """Return all incidents, and the row that stores the last check."""
        return IncidentQuerySet(self.model, using=self._db or settings.database)


class Incident(models.Model):
    """A problem that a rule has found. A process deletes the row when it has announced the end.

    The row with an empty rule is not an incident: it stores in `since` when a supervisor last checked.
    """

    pk = models.CompositePrimaryKey("rule", "subject")
    rule = models.TextField(_("rule"))
    """The code of the rule."""
    subject = models.TextField(_("subject"))
    """The queue, task, key or worker with the problem; empty if the rule finds at most one problem."""
    severity = models.TextField(_("severity"), db_default="")
    """`critical` or `warning`, from the last check that found the problem."""
    title = models.TextField(_("title"), db_default="")
    """A sentence that describes the problem, from the last check that found it."""
    since = models.DateTimeField(_("since"), db_default=Now())
    found_at = models.DateTimeField(db_default=Now())
    """When a check first found the problem."""
    raised_at = models.DateTimeField(null=True)
    """When the incident was raised; `None` if the problem has not lasted long enough."""
    calm_since = models.DateTimeField(null=True)
    """Since when checks no longer find the problem."""
    over_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    """When a process took over the announcement that is due."""
    is_announced = models.BooleanField(db_default=False)
    """Whether the beginning has been announced."""

    objects = IncidentManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_incident"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}".strip()
