"""Add batches of jobs: their table, the column by which a job belongs to one, and the index of these jobs."""

import django.db.models.functions.datetime
from django.db import migrations, models

import django_skipqueue.models.rollup

from ._postgresql import AddField, AddIndex


class Migration(migrations.Migration):
    """Create the tables, add the column and the index. No job has a batch yet, so the index is empty."""

    dependencies = [
        ("django_skipqueue", "0012_notes"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobBatch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(db_default="", verbose_name="name")),
                ("parent_id", models.BigIntegerField(null=True, verbose_name="outer batch")),
                ("callbacks", models.JSONField(default=dict, verbose_name="callbacks")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="created at"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                (
                    "callback_ids",
                    django_skipqueue.models.rollup.BigIntegers(null=True, verbose_name="callback jobs"),
                ),
                ("completed", models.BigIntegerField(null=True, verbose_name="completed")),
                ("failed", models.BigIntegerField(null=True, verbose_name="failed")),
                ("discarded", models.BigIntegerField(null=True, verbose_name="discarded")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "skipqueue_batch",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True)), fields=["id"], name="skipqueue_batch_open"
                    ),
                    models.Index(
                        condition=models.Q(("parent_id__isnull", False)),
                        fields=["parent_id"],
                        name="skipqueue_batch_inner",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["finished_at"],
                        name="skipqueue_batch_prune",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PrunedOfBatch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("batch_id", models.BigIntegerField()),
                ("status", models.TextField()),
                ("jobs", models.BigIntegerField()),
            ],
            options={
                "db_table": "skipqueue_batch_pruned",
                "default_permissions": (),
                "indexes": [models.Index(fields=["batch_id"], name="skipqueue_batch_pruned_of")],
            },
        ),
        AddField("job", "batch_id", models.BigIntegerField(null=True, verbose_name="batch")),
        AddIndex(
            "job",
            models.Index(
                condition=models.Q(("batch_id__isnull", False)),
                fields=["batch_id", "status", "id"],
                name="skipqueue_job_batch",
            ),
        ),
    ]
