"""Add the index of the failed jobs for which their sequences have halted."""

from django.db import migrations, models

from ._postgresql import AddIndex


class Migration(migrations.Migration):
    """Add it."""

    dependencies = [
        ("django_skipqueue", "0017_archived_unique_seconds"),
    ]

    operations = [
        AddIndex(
            "job",
            models.Index(
                fields=["finished_at", "id"],
                name="skipqueue_job_halted",
                condition=models.Q(("limit_kind", "halting"), ("status", "failed")),
            ),
        ),
    ]
