"""Add the limit of a queue that somebody has changed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column, which is NULL in the rows that are there: PostgreSQL rewrites nothing."""

    dependencies = [("django_skipqueue", "0018_halted")]

    operations = [
        migrations.AddField(
            "queue",
            "concurrency",
            models.SmallIntegerField(null=True, verbose_name="jobs at once"),
        ),
    ]
