"""Limit the length of the names of queues and tasks, which are in the primary keys of the roll-ups."""

import django.db.models.lookups
from django.db import migrations, models

from ._postgresql import AddConstraint


class Migration(migrations.Migration):
    """Add the constraint."""

    dependencies = [
        ("django_skipqueue", "0009_cause"),
    ]

    operations = [
        AddConstraint(
            "job",
            models.CheckConstraint(
                condition=models.Q(
                    django.db.models.lookups.LessThanOrEqual(
                        models.Func(
                            models.F("queue_name"), function="octet_length", output_field=models.IntegerField()
                        ),
                        1000,
                    ),
                    django.db.models.lookups.LessThanOrEqual(
                        models.Func(models.F("task"), function="octet_length", output_field=models.IntegerField()),
                        1000,
                    ),
                ),
                name="skipqueue_job_names",
            ),
        ),
    ]
