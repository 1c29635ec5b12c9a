"""The two tables of the queue."""

import datetime

import django.db.models.functions.datetime
import django.db.models.lookups
from django.db import migrations, models

from ._postgresql import AddConstraint, AddIndex


class Migration(migrations.Migration):
    """Makes them, with their indexes."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.TextField(editable=False, primary_key=True, serialize=False)),
                ("name", models.TextField(verbose_name="name")),
                ("hostname", models.TextField(verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("queues", models.JSONField(default=list, verbose_name="queues")),
                ("concurrency", models.IntegerField(verbose_name="concurrency")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="started at"
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last heartbeat"
                    ),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "skipqueue_worker",
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue_name", models.TextField(verbose_name="queue")),
                ("task", models.TextField(verbose_name="task")),
                ("args", models.JSONField(default=list, verbose_name="positional arguments")),
                ("kwargs", models.JSONField(default=dict, verbose_name="keyword arguments")),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("scheduled", "scheduled"),
                            ("blocked", "blocked"),
                            ("queued", "queued"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("discarded", "discarded"),
                        ],
                        verbose_name="status",
                    ),
                ),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("attempts", models.SmallIntegerField(db_default=0, verbose_name="attempts")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="maximum of attempts")),
                (
                    "run_after",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="run after"
                    ),
                ),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="enqueued at"
                    ),
                ),
                ("lease", models.BigIntegerField(db_default=0, verbose_name="lease")),
                ("locked_at", models.DateTimeField(null=True, verbose_name="locked at")),
                ("locked_by", models.TextField(db_default="", verbose_name="worker")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("last_error", models.TextField(db_default="", verbose_name="last error")),
                ("errors", models.JSONField(db_default=models.Value([], models.JSONField()), verbose_name="errors")),
                ("timeout", models.FloatField(null=True, verbose_name="timeout")),
                ("retention", models.JSONField(null=True, verbose_name="retention")),
                ("deaths", models.JSONField(null=True, verbose_name="deaths")),
                ("unknown_since", models.DateTimeField(null=True, verbose_name="unknown since")),
                ("unique_key", models.TextField(null=True, verbose_name="unique key")),
                (
                    "metadata",
                    models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="metadata"),
                ),
                ("operations", models.JSONField(null=True, verbose_name="operations")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "skipqueue_job",
                "permissions": (("retry_job", "Can retry job"), ("discard_job", "Can discard job")),
                "indexes": [
                    models.Index(
                        models.F("queue_name"),
                        models.Func(
                            models.F("priority"), output_field=models.SmallIntegerField(), template="(-%(expressions)s)"
                        ),
                        models.F("run_after"),
                        models.F("id"),
                        condition=models.Q(("status", "queued")),
                        name="skipqueue_job_claim",
                    ),
                    models.Index(
                        condition=models.Q(("status", "scheduled")),
                        fields=["run_after", "id"],
                        name="skipqueue_job_admit",
                    ),
                    models.Index(
                        condition=models.Q(("status", "blocked")), fields=["id"], name="skipqueue_job_blocked"
                    ),
                    models.Index(
                        condition=models.Q(("status", "running")), fields=["locked_at"], name="skipqueue_job_recover"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["completed", "failed", "discarded"])),
                        fields=["status", "finished_at"],
                        name="skipqueue_job_prune",
                    ),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["queue_name", "-finished_at"],
                        name="skipqueue_job_failed",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished_at__isnull", True), ("unique_key__isnull", False)),
                        fields=("unique_key",),
                        name="skipqueue_job_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                django.db.models.lookups.IsNull(models.F("finished_at"), True),
                                ("status__in", ["scheduled", "blocked", "queued", "running"]),
                            ),
                            models.Q(
                                django.db.models.lookups.IsNull(models.F("finished_at"), False),
                                ("status__in", ["completed", "failed", "discarded"]),
                            ),
                            _connector="OR",
                        ),
                        name="skipqueue_job_finished",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", -100), ("priority__lte", 100)),
                        name="skipqueue_job_priority",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("run_after__gte", datetime.datetime(1, 1, 2, 0, 0, tzinfo=datetime.UTC)),
                            ("run_after__lt", datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        ),
                        name="skipqueue_job_run_after",
                    ),
                ],
            },
        ),
        AddIndex(
            "job",
            models.Index(
                models.Func(
                    output_field=models.DateTimeField(),
                    template="((finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention->>status)::float8))",
                ),
                condition=models.Q(("retention__isnull", False), ("status__in", ["completed", "failed", "discarded"])),
                name="skipqueue_job_prune_own",
            ),
        ),
        AddConstraint(
            "job",
            models.CheckConstraint(
                condition=models.Q(
                    django.db.models.lookups.Exact(
                        models.Func(models.F("errors"), function="jsonb_typeof", output_field=models.TextField()),
                        "array",
                    ),
                    django.db.models.lookups.Exact(
                        models.Func(models.F("operations"), function="jsonb_typeof", output_field=models.TextField()),
                        "array",
                    ),
                    django.db.models.lookups.Exact(
                        models.Func(models.F("deaths"), function="jsonb_typeof", output_field=models.TextField()),
                        "array",
                    ),
                ),
                name="skipqueue_job_lists",
            ),
        ),
    ]
