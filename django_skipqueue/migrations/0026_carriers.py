"""Have rows of workers stand for carriers too: engines outside of PostgreSQL that run jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the columns that tell them and their relays apart, and those of what only a relay can see."""

    dependencies = [("django_skipqueue", "0025_begun")]

    operations = [
        migrations.AddField(
            "worker", "is_carrier", models.BooleanField(db_default=False, editable=False, verbose_name="carrier")
        ),
        migrations.AddField(
            "worker", "relay_of", models.TextField(db_default="", editable=False, verbose_name="relay of")
        ),
        migrations.AddField(
            "worker",
            "reached_at",
            models.DateTimeField(editable=False, null=True, verbose_name="broker reached at"),
        ),
        migrations.AddField(
            "worker", "refused", models.BigIntegerField(db_default=0, editable=False, verbose_name="refused jobs")
        ),
    ]
