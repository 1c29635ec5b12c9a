"""`WorkerOfCelery`: what is known of a relay and of a carrier, beside their rows among the workers."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from ...models.expressions import are_times


class WorkerOfCelery(models.Model):
    """A relay, or a carrier. Relays write the rows, and delete those of workers that have no row any more."""

    worker_id = models.TextField(primary_key=True)
    """The id of the row in `skipqueue_worker`."""
    relay_of = models.TextField(_("relay of"), db_default="")
    """The name of the carrier to which the process relays jobs; empty: this is a carrier."""
    reached_at = models.DateTimeField(_("broker reached at"), null=True)
    """Of a carrier: when a relay last wrote the heartbeat while its connection to the carrier was open."""
    refused = models.BigIntegerField(_("refused jobs"), db_default=0)
    """Of a carrier: how many jobs it has not taken from its relays, in total."""

    class Meta:
        app_label = "skipqueue_celery"
        db_table = "skipqueue_celery_worker"
        default_permissions = ()
        constraints = (models.CheckConstraint(name="skipqueue_celery_worker_times", condition=are_times("reached_at")),)

    def __str__(self) -> str:
        return self.worker_id
