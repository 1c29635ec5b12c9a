"""Keep in the archive how long a job held its unique key, so that a copy of the job holds it as long."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column, which is NULL in the rows that are there: PostgreSQL rewrites nothing."""

    dependencies = [("django_skipqueue", "0016_limits")]

    operations = [
        migrations.AddField(
            "archivedjob",
            "unique_seconds",
            models.FloatField(null=True, verbose_name="seconds of the unique key"),
        ),
    ]
