"""Keep the indexes of the jobs that wait for a permit or a token apart from that of all blocked jobs."""

from django.db import migrations, models

from ._postgresql import AddIndex, RemoveIndex


class Migration(migrations.Migration):
    """Build the two indexes anew: in their conditions, as in the statements that admit, `<=` means "is blocked"."""

    dependencies = [("django_skipqueue", "0023_queue_rates")]

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
                condition=models.Q(
                    ("awaits_jobs__isnull", True),
                    ("has_permit__isnull", True),
                    ("limit_key__isnull", False),
                    ("status__lte", "blocked"),
                ),
            ),
        ),
        RemoveIndex("job", "skipqueue_job_rate_waiting"),
        AddIndex(
            "job",
            models.Index(
                models.F("rate_key"),
                models.Func(
                    models.F("priority"), output_field=models.SmallIntegerField(), template="(-%(expressions)s)"
                ),
                models.F("run_after"),
                models.F("id"),
                name="skipqueue_job_rate_waiting",
                condition=models.Q(
                    ("awaits_jobs__isnull", True),
                    ("rate_key__isnull", False),
                    ("status__lte", "blocked"),
                    models.Q(("limit_key__isnull", True), ("has_permit", True), _connector="OR"),
                ),
            ),
        ),
    ]
