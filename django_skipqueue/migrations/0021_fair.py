"""Have the index of the jobs that wait for a permit sort fair jobs by priority."""

from django.db import migrations, models

from ._postgresql import AddIndex, RemoveIndex


class Migration(migrations.Migration):
    """Build the index anew."""

    dependencies = [("django_skipqueue", "0020_batch_failures")]

    operations = [
        RemoveIndex("job", "skipqueue_job_limit_waiting"),
        AddIndex(
            "job",
            models.Index(
                models.F("limit_key"),
                models.Func(
                    output_field=models.SmallIntegerField(),
                    template=(
                        "(CASE WHEN limit_kind IN ('concurrency', 'fair') THEN -priority WHEN lease > 0 THEN -1 "
                        "ELSE 0 END)"
                    ),
                ),
                models.F("id"),
                name="skipqueue_job_limit_waiting",
                condition=models.Q(("awaits_jobs__isnull", True), ("limit_key__isnull", False), ("status", "blocked")),
            ),
        ),
    ]
