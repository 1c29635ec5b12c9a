"""`Incident`: a problem of the verdict, from its beginning until a process has announced its end."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ...conf import settings


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Filters for incidents."""

    def open(self) -> "IncidentQuerySet":
        """Return the incidents that are raised and not over."""
        return self.filter(raised_at__isnull=False, over_at=None)


_IncidentManager = models.Manager.from_queryset(IncidentQuerySet)


class IncidentManager(_IncidentManager["Incident"]):
    """`Incident.objects`: the incidents in the queue's database."""

    def get_queryset(self) -> IncidentQuerySet:
        """All incidents, and the row of the last check."""
        return IncidentQuerySet(self.model, using=self._db or settings.database)


class Incident(models.Model):
    """A problem that a rule finds for some time. A process deletes the row when it has announced the end.

    The row with an empty rule is no incident: its `since` is the time of the last check by a supervisor.
    """

    pk = models.CompositePrimaryKey("rule", "subject")
    rule = models.TextField(_("rule"))
    """The code of the rule."""
    subject = models.TextField(_("subject"))
    """The queue, task, key or worker that has the problem; empty: the rule finds at most one problem."""
    severity = models.TextField(_("severity"), db_default="")
    """`critical` or `warning`, by the last check that found the problem."""
    title = models.TextField(_("title"), db_default="")
    """The sentence of the problem, by the last check that found it."""
    since = models.DateTimeField(_("since"), db_default=Now())
    found_at = models.DateTimeField(db_default=Now())
    """When a check found the problem first."""
    raised_at = models.DateTimeField(null=True)
    """`None`: the problem has not lasted long enough."""
    calm_since = models.DateTimeField(null=True)
    """Since when checks have not found the problem."""
    over_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    """When a process claimed the alert that is due."""
    is_announced = models.BooleanField(db_default=False)
    """Whether a process has announced the beginning."""

    objects = IncidentManager()

    class Meta:
        app_label = "django_skipqueue"
        db_table = "skipqueue_incident"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}".strip()
