"""Add the tables of roll-ups: what has happened to jobs, by minute and by hour."""

import django.db.models.functions.datetime
from django.db import migrations, models

import django_skipqueue.models.rollup

from ._postgresql import run_on_postgresql

# fillfactor: a write changes no indexed column, so with room on the page it writes no index (a HOT update).
# autovacuum_vacuum_threshold, _scale_factor: the few rows of the current minute are rewritten every few seconds.
STORAGE = """
ALTER TABLE skipqueue_rollup SET (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500
);
ALTER TABLE skipqueue_failure_rollup SET (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500
)
"""


class Migration(migrations.Migration):
    """Create them."""

    dependencies = [
        ("django_skipqueue", "0005_worker_figures"),
    ]

    operations = [
        migrations.CreateModel(
            name="RollUpProgress",
            fields=[
                ("id", models.SmallIntegerField(db_default=1, primary_key=True, serialize=False)),
                ("counted_to", models.BigIntegerField()),
                ("ready_to", models.BigIntegerField()),
                ("ready_xid", models.BigIntegerField()),
                ("seen_to", models.BigIntegerField()),
                ("ready_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("changed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "skipqueue_rollup_progress",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="FailureRollUp",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "span",
                        "task",
                        "exception",
                        "place",
                        "starts_at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "span",
                    models.SmallIntegerField(),
                ),
                ("task", models.TextField()),
                ("exception", models.TextField()),
                ("place", models.TextField()),
                ("starts_at", models.DateTimeField()),
                ("number", models.BigIntegerField()),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("last_line", models.IntegerField(null=True)),
                ("last_job_id", models.BigIntegerField()),
            ],
            options={
                "db_table": "skipqueue_failure_rollup",
                "default_permissions": (),
                "indexes": [models.Index(fields=["span", "starts_at"], name="skipqueue_failure_rollup_prune")],
            },
        ),
        migrations.CreateModel(
            name="RollUp",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "span",
                        "queue_name",
                        "task",
                        "starts_at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "span",
                    models.SmallIntegerField(),
                ),
                ("queue_name", models.TextField()),
                ("task", models.TextField()),
                ("starts_at", models.DateTimeField()),
                (
                    "changed_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("enqueued", models.BigIntegerField(db_default=0)),
                ("completed", models.BigIntegerField(db_default=0)),
                ("retried", models.BigIntegerField(db_default=0)),
                ("snoozed", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("discarded", models.BigIntegerField(db_default=0)),
                ("recovered", models.BigIntegerField(db_default=0)),
                ("lost", models.BigIntegerField(db_default=0)),
                ("waited", django_skipqueue.models.rollup.BigIntegers(null=True)),
                ("ran", django_skipqueue.models.rollup.BigIntegers(null=True)),
                ("waited_seconds", models.FloatField(db_default=0.0)),
                ("ran_seconds", models.FloatField(db_default=0.0)),
                ("claims", models.BigIntegerField(db_default=0)),
                ("claim_times", django_skipqueue.models.rollup.BigIntegers(null=True)),
                ("claim_seconds", models.FloatField(db_default=0.0)),
                ("depth", models.BigIntegerField(null=True)),
                ("oldest_seconds", models.FloatField(null=True)),
            ],
            options={
                "db_table": "skipqueue_rollup",
                "default_permissions": (),
                "indexes": [models.Index(fields=["span", "starts_at"], name="skipqueue_rollup_prune")],
            },
        ),
        migrations.RunPython(run_on_postgresql(STORAGE), migrations.RunPython.noop),
    ]
