"""`WorkerOfCelery`: columns of relays and carriers that the table of workers does not have."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from ...models.expressions import are_times


class WorkerOfCelery(models.Model):
    """A relay or a carrier. Relays write the rows, and delete the rows of workers that are gone."""

    worker_id = models.TextField(primary_key=True)
    """The id of the row in `skipqueue_worker`."""
    relay_of = models.TextField(_("relay of"), db_default="")
    """The name of the carrier that gets the relay's jobs; empty: the row is a carrier's."""
    reached_at = models.DateTimeField(_("broker reached at"), null=True)
    """When a relay last wrote this carrier's heartbeat while its connection to the carrier was open."""
    refused = models.BigIntegerField(_("refused jobs"), db_default=0)
    """The total number of jobs that this carrier has refused."""

    class Meta:
        app_label = "skipqueue_celery"
        db_table = "skipqueue_celery_worker"
        default_permissions = ()
        constraints = (models.CheckConstraint(name="skipqueue_celery_worker_times", condition=are_times("reached_at")),)

    def __str__(self) -> str:
        return self.worker_id
