"""Add the table of incidents: the limits of the setting `ALERTS` that are exceeded."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    dependencies = [("django_skipqueue", "0006_rollups")]

    operations = [
        migrations.CreateModel(
            name="Incident",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "rule", "queue_name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("rule", models.TextField(verbose_name="rule")),
                ("queue_name", models.TextField(verbose_name="queue")),
                (
                    "since",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="since"),
                ),
                ("value", models.FloatField(db_default=0.0, verbose_name="value")),
                ("threshold", models.FloatField(db_default=0.0, verbose_name="limit")),
                ("raised_at", models.DateTimeField(null=True)),
                ("calm_since", models.DateTimeField(null=True)),
                ("over_at", models.DateTimeField(null=True)),
                ("claimed_at", models.DateTimeField(null=True)),
                ("is_announced", models.BooleanField(db_default=False)),
            ],
            options={"db_table": "skipqueue_incident", "default_permissions": ()},
        ),
    ]
