"""Add the rate of a queue that somebody has changed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the columns, which are NULL in the rows that are there: PostgreSQL rewrites nothing."""

    dependencies = [("django_skipqueue", "0022_rates")]

    operations = [
        migrations.AddField(
            "queue", "rate_interval", models.FloatField(null=True, verbose_name="interval of the rate")
        ),
        migrations.AddField(
            "queue", "rate_burst", models.SmallIntegerField(null=True, verbose_name="burst of the rate")
        ),
    ]
