"""Add the index of failed and retrying jobs by the cause of their last error."""

from django.db import migrations, models

from ._postgresql import AddIndex


class Migration(migrations.Migration):
    """Add it."""

    dependencies = [
        ("django_skipqueue", "0008_claim_costs"),
    ]

    operations = [
        AddIndex(
            "job",
            models.Index(
                models.Func(
                    output_field=models.BigIntegerField(),
                    template=(
                        "hashtextextended(task || ' ' || COALESCE(errors->-1->>'exception', '') || ' ' || "
                        "COALESCE(errors->-1->>'place', ''), 0)"
                    ),
                ),
                models.F("status"),
                models.F("id"),
                condition=models.Q(
                    ("status", "failed"), models.Q(("attempts__gt", 0), ("status", "scheduled")), _connector="OR"
                ),
                name="skipqueue_job_cause",
            ),
        ),
    ]
