"""Add to the roll-ups what a claim reads."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the two columns."""

    dependencies = [("django_skipqueue", "0007_incident")]

    operations = [
        migrations.AddField("rollup", "claim_pages", models.BigIntegerField(null=True)),
        migrations.AddField("rollup", "claim_rows", models.BigIntegerField(null=True)),
    ]
