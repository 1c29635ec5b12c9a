"""The table of paused queues."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    dependencies = [("django_skipqueue", "0002_storage")]

    operations = [
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("paused_until", models.DateTimeField(null=True, verbose_name="paused until")),
                ("paused_by", models.TextField(db_default="", verbose_name="paused by")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "skipqueue_queue",
            },
        ),
    ]
