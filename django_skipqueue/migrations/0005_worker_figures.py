"""Add the memory of a worker and the number of its jobs to its row, and the table of the requests to workers."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the two columns and the table."""

    dependencies = [("django_skipqueue", "0004_archive")]

    operations = [
        migrations.AddField("worker", "memory_mb", models.IntegerField(null=True, verbose_name="memory in MiB")),
        migrations.AddField("worker", "jobs_done", models.BigIntegerField(db_default=0, verbose_name="jobs done")),
        migrations.CreateModel(
            name="WorkerRequest",
            fields=[
                ("worker_id", models.TextField(primary_key=True, serialize=False)),
                ("request", models.TextField()),
            ],
            options={"db_table": "skipqueue_worker_request", "default_permissions": ()},
        ),
    ]
