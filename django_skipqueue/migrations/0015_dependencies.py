"""Add dependencies between jobs: their table, and the column by which a job waits."""

from django.db import migrations, models

from ._postgresql import AddField


class Migration(migrations.Migration):
    """Create the table, and add the column."""

    dependencies = [("django_skipqueue", "0014_unique")]

    operations = [
        migrations.CreateModel(
            name="Dependency",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("job_id", models.BigIntegerField()),
                ("position", models.IntegerField()),
                ("needs_job_id", models.BigIntegerField()),
                ("after_failure", models.TextField()),
                ("is_met", models.BooleanField(db_default=False)),
                ("pruned_as", models.TextField(null=True)),
            ],
            options={
                "db_table": "skipqueue_dependency",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_met", False)),
                        fields=["needs_job_id", "after_failure", "job_id"],
                        name="skipqueue_dependency_unmet",
                    )
                ],
            },
        ),
        AddField("job", "awaits_jobs", models.BooleanField(null=True, verbose_name="waits for other jobs")),
    ]
