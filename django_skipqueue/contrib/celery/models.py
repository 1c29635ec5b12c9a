"""`WorkerOfCelery`: extra columns for relays and carriers, which both have a row in the table of workers."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from ...models.expressions import are_times


class WorkerOfCelery(models.Model):
    """A relay or a carrier. Relays write these rows, and delete the rows of workers that no longer exist."""

    worker_id = models.TextField(primary_key=True)
    """The id of the row in `skipqueue_worker`."""
    relay_of = models.TextField(_("relay of"), db_default="")
    """The name of the carrier that gets the relay's jobs; empty if the row belongs to a carrier."""
    reached_at = models.DateTimeField(_("broker reached at"), null=True)
    """When a relay that was connected to this carrier last wrote the carrier's heartbeat."""
    refused = models.BigIntegerField(_("refused jobs"), db_default=0)
    """The total number of jobs that this carrier has refused."""

    class Meta:
        app_label = "skipqueue_celery"
        db_table = "skipqueue_celery_worker"
        default_permissions = ()
        constraints = (models.CheckConstraint(name="skipqueue_celery_worker_times", condition=are_times("reached_at")),)

    def __str__(self) -> str:
        return self.worker_id
