"""The unique index holds only jobs that have a key: two index entries less for every other job on its way.

And one CHECK less: that a finished status goes with `finished_at` names the six statuses already.
"""

from django.db import migrations, models

from ._postgresql import AddConstraint, RemoveConstraint


class Migration(migrations.Migration):
    """Make the index anew, and drop the CHECK."""

    dependencies = (("django_skipqueue", "0003_retention"),)

    operations = (
        RemoveConstraint(model_name="job", name="skipqueue_job_status"),
        RemoveConstraint(model_name="job", name="skipqueue_job_unique"),
        AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status__in", ["scheduled", "queued", "running"]), ("unique_key__isnull", False)),
                fields=("unique_key",),
                name="skipqueue_job_unique",
            ),
        ),
    )
