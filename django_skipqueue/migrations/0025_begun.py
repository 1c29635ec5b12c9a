"""Have only a job that has begun hold its sequence, or go first in it: a new lease does not say that it has."""

from django.db import migrations, models

from ._postgresql import AddIndex, RemoveIndex


class Migration(migrations.Migration):
    """Build the two indexes anew: in one's condition, and in the other's order, a job that has begun is told apart."""

    dependencies = [("django_skipqueue", "0024_waiting")]

    operations = [
        RemoveIndex("job", "skipqueue_job_limit_held"),
        AddIndex(
            "job",
            models.Index(
                fields=["limit_key"],
                name="skipqueue_job_limit_held",
                condition=models.Q(
                    ("limit_key__isnull", False),
                    models.Q(
                        ("status__in", ["queued", "running"]),
                        models.Q(
                            models.Q(("started_at__isnull", False), ("attempts__gt", 0), _connector="OR"),
                            ("limit_kind__in", ["sequence", "halting"]),
                            ("status", "scheduled"),
                        ),
                        models.Q(("limit_kind", "halting"), ("status", "failed")),
                        models.Q(("has_permit", True), ("status", "blocked")),
                        _connector="OR",
                    ),
                ),
            ),
        ),
        RemoveIndex("job", "skipqueue_job_limit_waiting"),
        AddIndex(
            "job",
            models.Index(
                models.F("limit_key"),
                models.Func(
                    output_field=models.SmallIntegerField(),
                    template=(
                        "(CASE WHEN limit_kind IN ('concurrency', 'fair') THEN -priority "
                        "WHEN started_at IS NOT NULL OR attempts > 0 THEN -1 ELSE 0 END)"
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
    ]
