"""Add the memory of a worker, the number of its jobs and the requests of operators to its row."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the three columns."""

    dependencies = [("django_skipqueue", "0004_archive")]

    operations = [
        migrations.AddField("worker", "memory_mb", models.IntegerField(null=True, verbose_name="memory in MiB")),
        migrations.AddField("worker", "jobs_done", models.BigIntegerField(db_default=0, verbose_name="jobs done")),
        migrations.AddField("worker", "requested", models.TextField(db_default="", verbose_name="requested")),
    ]
