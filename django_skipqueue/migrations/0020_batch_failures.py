"""Find the batches with failures, for the admin."""

from django.db import migrations, models
from django.db.models import Q

from ._postgresql import AddIndex


class Migration(migrations.Migration):
    """Build a small index: few batches have failures. Jobs are enqueued and run meanwhile; no batch is finished."""

    dependencies = [("django_skipqueue", "0019_queue_limits")]

    operations = [
        AddIndex(
            "jobbatch",
            models.Index(
                fields=["id"], name="skipqueue_batch_failures", condition=Q(failed__gt=0) | Q(discarded__gt=0)
            ),
        ),
    ]
