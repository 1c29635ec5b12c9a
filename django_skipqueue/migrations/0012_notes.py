"""Add what attempts note while they run: the progress of a job, and the logs of its last attempts."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the two columns to both tables."""

    dependencies = [("django_skipqueue", "0011_schedule")]

    operations = [
        migrations.AddField("job", "progress", models.JSONField(null=True, verbose_name="progress")),
        migrations.AddField("job", "logs", models.JSONField(null=True, verbose_name="logs")),
        migrations.AddField("archivedjob", "progress", models.JSONField(null=True, verbose_name="progress")),
        migrations.AddField("archivedjob", "logs", models.JSONField(null=True, verbose_name="logs")),
    ]
