"""Add the table of schedules."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    dependencies = [
        ("django_skipqueue", "0010_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True, verbose_name="name")),
                ("task", models.TextField(verbose_name="task")),
                (
                    "args",
                    models.JSONField(
                        db_default=models.Value([], models.JSONField()), verbose_name="positional arguments"
                    ),
                ),
                (
                    "kwargs",
                    models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="keyword arguments"),
                ),
                ("cron", models.TextField(db_default="", verbose_name="cron expression")),
                ("interval", models.DurationField(null=True, verbose_name="interval")),
                ("timezone", models.TextField(db_default="UTC", verbose_name="time zone")),
                (
                    "catch_up",
                    models.TextField(
                        choices=[
                            ("latest", "one job for the latest"),
                            ("all", "one job for each, at most 100"),
                            ("skip", "nothing"),
                        ],
                        db_default="latest",
                        verbose_name="for times that were missed",
                    ),
                ),
                (
                    "overlap",
                    models.TextField(
                        choices=[("allow", "another job is enqueued"), ("skip", "nothing is enqueued")],
                        db_default="allow",
                        verbose_name="while the last job is unfinished",
                    ),
                ),
                ("jitter", models.FloatField(db_default=0.0, verbose_name="random delay in seconds, at most")),
                (
                    "source",
                    models.TextField(
                        choices=[("code", "code"), ("settings", "settings"), ("admin", "admin")],
                        db_default="admin",
                        verbose_name="source",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="created at"
                    ),
                ),
                ("next_run_at", models.DateTimeField(null=True, verbose_name="next run")),
                ("fire_at", models.DateTimeField(null=True)),
                ("last_run_at", models.DateTimeField(null=True, verbose_name="last run")),
                ("last_job_id", models.BigIntegerField(null=True, verbose_name="last job")),
                ("skipped_at", models.DateTimeField(null=True, verbose_name="last skipped")),
                ("error", models.TextField(db_default="", verbose_name="error")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("paused_by", models.TextField(db_default="", verbose_name="paused by")),
                ("digest", models.TextField(db_default="")),
                ("previous_digest", models.TextField(db_default="")),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("retired_at", models.DateTimeField(null=True, verbose_name="not in the code since")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "skipqueue_schedule",
                "permissions": (("run_schedule", "Can pause, resume and run schedule"),),
                "indexes": [
                    models.Index(
                        condition=models.Q(("paused_at__isnull", True)),
                        fields=["fire_at", "id"],
                        name="skipqueue_schedule_fire",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cron", ""), ("interval__isnull", False)),
                            models.Q(models.Q(("cron", ""), _negated=True), ("interval__isnull", True)),
                            _connector="OR",
                        ),
                        name="skipqueue_schedule_moment",
                    )
                ],
            },
        ),
    ]
