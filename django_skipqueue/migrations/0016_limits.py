"""Add the key of a job's limit, and the indexes of the jobs that hold a permit of their key, or wait for one."""

from django.db import migrations, models

from ._postgresql import AddIndex

COLUMNS = (
    ("limit_key", models.TextField(null=True, verbose_name="limit key")),
    ("limit_kind", models.TextField(null=True, verbose_name="kind of limit")),
    ("capacity", models.SmallIntegerField(null=True, verbose_name="capacity")),
)


class Migration(migrations.Migration):
    """Add them."""

    dependencies = [
        ("django_skipqueue", "0015_dependencies"),
    ]

    operations = [
        *[migrations.AddField("job", name, field) for name, field in COLUMNS],
        *[migrations.AddField("archivedjob", name, field) for name, field in COLUMNS],
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
                            ("lease__gt", 0), ("limit_kind__in", ["sequence", "halting"]), ("status", "scheduled")
                        ),
                        models.Q(("limit_kind", "halting"), ("status", "failed")),
                        _connector="OR",
                    ),
                ),
            ),
        ),
        AddIndex(
            "job",
            models.Index(
                models.F("limit_key"),
                models.Func(
                    output_field=models.SmallIntegerField(),
                    template="(CASE WHEN limit_kind = 'concurrency' THEN -priority WHEN lease > 0 THEN -1 ELSE 0 END)",
                ),
                models.F("id"),
                name="skipqueue_job_limit_waiting",
                condition=models.Q(("awaits_jobs__isnull", True), ("limit_key__isnull", False), ("status", "blocked")),
            ),
        ),
    ]
