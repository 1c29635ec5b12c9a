"""Add the key of a job's rate, the buckets of the keys, and the mark of a job that has a permit and waits for its rate."""

from django.db import migrations, models

from ._postgresql import AddIndex, RemoveIndex

COLUMNS = (
    ("rate_key", models.TextField(null=True, verbose_name="rate key")),
    ("rate_interval", models.FloatField(null=True, verbose_name="interval of the rate")),
    ("rate_burst", models.SmallIntegerField(null=True, verbose_name="burst of the rate")),
)


class Migration(migrations.Migration):
    """Add them. The two indexes of limits are built anew, with the mark in their conditions."""

    dependencies = [
        ("django_skipqueue", "0021_fair"),
    ]

    operations = [
        *[migrations.AddField("job", name, field) for name, field in COLUMNS],
        *[migrations.AddField("archivedjob", name, field) for name, field in COLUMNS],
        migrations.AddField("job", "has_permit", models.BooleanField(null=True, verbose_name="has a permit")),
        migrations.CreateModel(
            name="RateBucket",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("full_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "skipqueue_rate",
                "default_permissions": (),
                "indexes": [models.Index(fields=["due_at", "full_at"], name="skipqueue_rate_due")],
            },
        ),
        RemoveIndex("job", "skipqueue_job_limit_held"),
        RemoveIndex("job", "skipqueue_job_limit_waiting"),
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
                        models.Q(("has_permit", True), ("status", "blocked")),
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
                    ("status", "blocked"),
                ),
            ),
        ),
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
                    ("status", "blocked"),
                    models.Q(("limit_key__isnull", True), ("has_permit", True), _connector="OR"),
                ),
            ),
        ),
        AddIndex(
            "job",
            models.Index(
                fields=["rate_key"],
                name="skipqueue_job_rate_queued",
                condition=models.Q(("rate_key__isnull", False), ("status", "queued")),
            ),
        ),
    ]
