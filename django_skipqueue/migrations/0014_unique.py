"""Let a job hold its unique key until a worker claims it, or for a time from the enqueue."""

from django.db import migrations, models
from django.db.models import Q

from ._postgresql import AddConstraint, AddField, OnPostgreSQL


class RemoveConstraint(OnPostgreSQL, migrations.RemoveConstraint):
    """Of a table with an index of PostgreSQL's: SQLite copies the table."""


class Migration(migrations.Migration):
    """Add the column, and put an index with another condition in place of the old one."""

    dependencies = [("django_skipqueue", "0013_batches")]

    operations = [
        AddField(
            "job",
            "unique_seconds",
            models.FloatField(null=True, verbose_name="seconds of the unique key"),
        ),
        RemoveConstraint("job", "skipqueue_job_unique"),
        AddConstraint(
            "job",
            models.UniqueConstraint(
                condition=Q(
                    ("unique_key__isnull", False),
                    Q(
                        ("unique_seconds__gt", 0),
                        Q(
                            ("finished_at__isnull", True),
                            Q(("unique_seconds__isnull", True), ("lease", 0), _connector="OR"),
                        ),
                        _connector="OR",
                    ),
                ),
                fields=("unique_key",),
                name="skipqueue_job_unique",
            ),
        ),
    ]
