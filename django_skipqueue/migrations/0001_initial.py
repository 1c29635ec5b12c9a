"""The tables of the queue, their indexes and constraints, and what PostgreSQL should know about their use."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import migrations, models
from django.db.models import CheckConstraint, F, Func, Index, Q, Value
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull, LessThanOrEqual

from ._postgresql import AddConstraint, AddIndex, BigIntegers, run_on_postgresql

UNFINISHED = ["scheduled", "blocked", "queued", "running"]
FINISHED = ["completed", "failed", "discarded"]
STATUSES = [(status, status) for status in UNFINISHED + FINISHED]

MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=models.SmallIntegerField())
CAUSE = Func(
    template="hashtextextended(task || ' ' || COALESCE(errors->-1->>'exception', '') || ' ' || COALESCE(errors->-1->>'place', ''), 0)",
    output_field=models.BigIntegerField(),
)
LIMIT_RANK = Func(
    template="""(CASE
    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
    ELSE 0
END)""",
    output_field=models.SmallIntegerField(),
)
HOLDS_PERMIT = Func(
    template="""(
    status IN ('queued', 'running')
    OR gate = 'rate'
    OR (
        (started_at IS NOT NULL OR attempts > 0)
        AND limit_kind IN ('sequence', 'halting')
        AND status = 'scheduled'
    )
    OR (limit_kind = 'halting' AND status = 'failed')
)""",
    output_field=models.BooleanField(),
)
PRUNE_AT = Func(
    template="((finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention->>status)::float8))",
    output_field=models.DateTimeField(),
)
INTERVALS = (1 / 10_000, 366 * 86_400.0)
HALTS = Q(limit_kind="halting", status="failed")


def are_times(*columns: str) -> Q:
    """The condition that Python has these times."""
    first, end = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
    return Q(*(Q(**{name: None}) | Q(**{f"{name}__gte": first, f"{name}__lt": end}) for name in columns))


JOB_INDEXES = [
    Index(
        *(F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id")),
        name="skipqueue_job_claim",
        condition=Q(status="queued"),
    ),
    Index(fields=["run_after", "id"], name="skipqueue_job_admit", condition=Q(status="scheduled")),
    Index(fields=["id"], name="skipqueue_job_blocked", condition=Q(status="blocked")),
    Index(fields=["locked_at"], name="skipqueue_job_recover", condition=Q(status="running")),
    Index(fields=["status", "finished_at"], name="skipqueue_job_prune", condition=Q(status__in=FINISHED)),
    Index(PRUNE_AT, name="skipqueue_job_prune_own", condition=Q(status__in=FINISHED, retention__isnull=False)),
    Index(fields=["queue_name", "-finished_at"], name="skipqueue_job_failed", condition=Q(status="failed")),
    Index(
        *(CAUSE, F("status"), F("id")),
        name="skipqueue_job_cause",
        condition=Q(status="failed") | Q(status="scheduled", attempts__gt=0),
    ),
    Index(fields=["batch_id", "status", "id"], name="skipqueue_job_batch", condition=Q(batch_id__isnull=False)),
    Index(
        fields=["limit_key"],
        name="skipqueue_job_limit_held",
        condition=Q(limit_key__isnull=False) & Q(HOLDS_PERMIT),
    ),
    Index(
        *(F("limit_key"), LIMIT_RANK, F("id")),
        name="skipqueue_job_limit_waiting",
        condition=Q(gate="limit", limit_key__isnull=False),
    ),
    Index(
        *(F("rate_key"), MINUS_PRIORITY, F("run_after"), F("id")),
        name="skipqueue_job_rate_waiting",
        condition=Q(gate="rate", rate_key__isnull=False),
    ),
    Index(fields=["rate_key"], name="skipqueue_job_rate_queued", condition=Q(status="queued", rate_key__isnull=False)),
    Index(fields=["finished_at", "id"], name="skipqueue_job_halted", condition=HALTS),
]

JOB_CONSTRAINTS = [
    models.UniqueConstraint(
        fields=["unique_key"],
        name="skipqueue_job_unique",
        condition=Q(unique_key__isnull=False)
        & (Q(unique_seconds__gt=0) | (Q(finished_at__isnull=True) & (Q(unique_seconds__isnull=True) | Q(lease=0)))),
    ),
    CheckConstraint(
        name="skipqueue_job_finished",
        condition=Q(IsNull(F("finished_at"), True), status__in=UNFINISHED)
        | Q(IsNull(F("finished_at"), False), status__in=FINISHED),
    ),
    CheckConstraint(
        name="skipqueue_job_gate",
        condition=Q(Q(gate=None) | Q(gate="ahead"), ~Q(status="blocked"))
        | Q(IsNull(F("gate"), False), status="blocked"),
    ),
    CheckConstraint(name="skipqueue_job_priority", condition=Q(priority__gte=-100, priority__lte=100)),
    CheckConstraint(
        name="skipqueue_job_run_after",
        condition=Q(run_after__gte=datetime(1, 1, 2, tzinfo=UTC), run_after__lt=datetime(9999, 1, 1, tzinfo=UTC)),
    ),
    CheckConstraint(
        name="skipqueue_job_numbers",
        condition=Q(
            Q(timeout=None) | Q(timeout__gte=0, timeout__lt=math.inf),
            enqueued_at__gte=datetime(1, 1, 2, tzinfo=UTC),
            enqueued_at__lt=datetime(9999, 1, 1, tzinfo=UTC),
        ),
    ),
    CheckConstraint(
        name="skipqueue_job_unique_seconds",
        condition=Q(unique_seconds=None) | Q(unique_seconds__gte=0, unique_seconds__lt=math.inf),
    ),
    CheckConstraint(name="skipqueue_job_capacity", condition=Q(capacity=None) | Q(capacity__gte=0)),
    CheckConstraint(
        name="skipqueue_job_rate_interval", condition=Q(rate_interval=None) | Q(rate_interval__range=INTERVALS)
    ),
    CheckConstraint(
        name="skipqueue_job_times", condition=are_times("started_at", "finished_at", "locked_at", "unknown_since")
    ),
    CheckConstraint(
        name="skipqueue_job_names",
        condition=Q(
            *(
                LessThanOrEqual(Func(F(column), function="octet_length", output_field=models.IntegerField()), 1000)
                for column in ("queue_name", "task")
            )
        ),
    ),
    CheckConstraint(
        name="skipqueue_job_lists",
        condition=Q(
            *(
                Exact(Func(F(column), function="jsonb_typeof", output_field=models.TextField()), "array")
                for column in ("errors", "operations", "deaths")
            )
        ),
    ),
]

CONSTRAINTS_OF_OTHERS = [
    ("queue", CheckConstraint(name="skipqueue_queue_times", condition=are_times("paused_at", "paused_until"))),
    ("worker", CheckConstraint(name="skipqueue_worker_times", condition=are_times("started_at", "heartbeat_at"))),
    (
        "worker",
        CheckConstraint(
            name="skipqueue_worker_queues",
            condition=Exact(Func(F("queues"), function="jsonb_typeof", output_field=models.TextField()), "array"),
        ),
    ),
    ("jobbatch", CheckConstraint(name="skipqueue_batch_times", condition=are_times("created_at", "finished_at"))),
    (
        "schedule",
        CheckConstraint(
            name="skipqueue_schedule_times",
            condition=are_times(
                *("created_at", "next_run_at", "fire_at", "last_run_at", "failing_since"),
                *("skipped_at", "paused_at", "confirmed_at", "retired_at"),
            )
            & (Q(interval=None) | Q(interval__range=(timedelta(0), timedelta(days=36_600))))
            & Q(jitter__range=(0, 36_600 * 86_400)),
        ),
    ),
]

# Columns of a fixed length come first, so that a row has no padding. A partitioned table has the time in its primary key.
ARCHIVE = """
CREATE TABLE skipqueue_archivedjob (
    id bigint NOT NULL,
    finished_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    run_after timestamptz NOT NULL,
    started_at timestamptz,
    timeout double precision,
    unique_seconds double precision,
    rate_interval double precision,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    capacity smallint,
    rate_burst smallint,
    status text NOT NULL,
    queue_name text NOT NULL,
    task text NOT NULL,
    args jsonb NOT NULL,
    kwargs jsonb NOT NULL,
    locked_by text NOT NULL,
    result jsonb,
    last_error text NOT NULL,
    errors jsonb NOT NULL,
    retention jsonb,
    unique_key text,
    metadata jsonb NOT NULL,
    operations jsonb,
    progress jsonb,
    logs jsonb,
    limit_key text,
    limit_kind text,
    rate_key text,
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);
CREATE INDEX skipqueue_archivedjob_time ON skipqueue_archivedjob (finished_at);
CREATE INDEX skipqueue_archivedjob_task ON skipqueue_archivedjob (task, finished_at);
CREATE INDEX skipqueue_archivedjob_failed ON skipqueue_archivedjob (status, finished_at)
    WHERE status IN ('failed', 'discarded')
"""

# The table of jobs is hot: each job leaves three dead rows behind on its way through the statuses.
# autovacuum_vacuum_scale_factor, _threshold: vacuum after 2,000 dead rows and 1 % of the table, not after 20 % of it: the
#   claim index must not grow a tail of dead entries because ten million finished jobs make 20 % a distant goal.
# autovacuum_vacuum_insert_scale_factor: vacuum rows that are only inserted (a large backlog) as soon, to set their visibility.
# autovacuum_analyze_scale_factor, _threshold: the share of each status changes quickly; the planner should know.
# autovacuum_vacuum_cost_delay: let vacuum run at full speed here; a slow one is overtaken by the workers.
# fillfactor: a claim and a settle each write a new version of the row; room on its own page keeps both on that page.
JOB_STORAGE = """
ALTER TABLE skipqueue_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    fillfactor = 85
)
"""

# fillfactor: a heartbeat changes no indexed column, so with room on the page it writes no index (a HOT update).
# autovacuum_vacuum_threshold, _scale_factor: a handful of rows, rewritten every few seconds.
WORKER_STORAGE = """
ALTER TABLE skipqueue_worker SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
)
"""

# fillfactor: a write changes no indexed column, so with room on the page it writes no index (a HOT update).
# autovacuum_vacuum_threshold, _scale_factor: the few rows of the current minute are rewritten every few seconds.
ROLLUP_STORAGE = """
ALTER TABLE skipqueue_rollup SET (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500
);
ALTER TABLE skipqueue_failure_rollup SET (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500
)
"""


class CreatePartitioned(migrations.CreateModel):
    """The table of `ARCHIVE` where the queue can live; in another database of the project an ordinary table.

    It has no partition: supervisors make partitions once the archive is switched on.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        elif self.allow_migrate_model(schema_editor.connection.alias, to_state.apps.get_model(app_label, self.name)):
            schema_editor.execute(ARCHIVE)


class Migration(migrations.Migration):
    """Make the tables."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue_name", models.TextField(verbose_name="queue")),
                ("task", models.TextField(verbose_name="task")),
                ("args", models.JSONField(default=list, verbose_name="positional arguments")),
                ("kwargs", models.JSONField(default=dict, verbose_name="keyword arguments")),
                ("status", models.TextField(choices=STATUSES, verbose_name="status")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("attempts", models.SmallIntegerField(db_default=0, verbose_name="attempts")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="maximum of attempts")),
                ("run_after", models.DateTimeField(db_default=Now(), verbose_name="run after")),
                ("enqueued_at", models.DateTimeField(db_default=Now(), verbose_name="enqueued at")),
                ("lease", models.BigIntegerField(db_default=0, verbose_name="lease")),
                ("locked_at", models.DateTimeField(null=True, verbose_name="locked at")),
                ("locked_by", models.TextField(db_default="", verbose_name="worker")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("last_error", models.TextField(db_default="", verbose_name="last error")),
                ("errors", models.JSONField(db_default=Value([], models.JSONField()), verbose_name="errors")),
                ("timeout", models.FloatField(null=True, verbose_name="timeout")),
                ("retention", models.JSONField(null=True, verbose_name="retention")),
                ("deaths", models.JSONField(null=True, verbose_name="deaths")),
                ("unknown_since", models.DateTimeField(null=True, verbose_name="unknown since")),
                ("unique_key", models.TextField(null=True, verbose_name="unique key")),
                ("metadata", models.JSONField(db_default=Value({}, models.JSONField()), verbose_name="metadata")),
                ("operations", models.JSONField(null=True, verbose_name="operations")),
                ("progress", models.JSONField(null=True, verbose_name="progress")),
                ("logs", models.JSONField(null=True, verbose_name="logs")),
                ("batch_id", models.BigIntegerField(null=True, verbose_name="batch")),
                ("unique_seconds", models.FloatField(null=True, verbose_name="seconds of the unique key")),
                ("held", models.BooleanField(null=True, verbose_name="is held")),
                ("limit_key", models.TextField(null=True, verbose_name="limit key")),
                ("limit_kind", models.TextField(null=True, verbose_name="kind of limit")),
                ("capacity", models.SmallIntegerField(null=True, verbose_name="capacity")),
                ("rate_key", models.TextField(null=True, verbose_name="rate key")),
                ("rate_interval", models.FloatField(null=True, verbose_name="interval of the rate")),
                ("rate_burst", models.SmallIntegerField(null=True, verbose_name="burst of the rate")),
                ("gate", models.TextField(null=True, verbose_name="gate")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "skipqueue_job",
                "permissions": (("retry_job", "Can retry job"), ("discard_job", "Can discard job")),
            },
        ),
        *[AddIndex("job", index) for index in JOB_INDEXES],
        *[AddConstraint("job", constraint) for constraint in JOB_CONSTRAINTS],
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.TextField(editable=False, primary_key=True, serialize=False)),
                ("name", models.TextField(verbose_name="name")),
                ("hostname", models.TextField(verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("queues", models.JSONField(default=list, verbose_name="queues")),
                ("concurrency", models.IntegerField(verbose_name="concurrency")),
                ("started_at", models.DateTimeField(db_default=Now(), verbose_name="started at")),
                ("heartbeat_at", models.DateTimeField(db_default=Now(), verbose_name="last heartbeat")),
                ("memory_mb", models.IntegerField(null=True, verbose_name="memory in MiB")),
                ("jobs_done", models.BigIntegerField(db_default=0, verbose_name="jobs done")),
                ("deployment", models.TextField(db_default="", verbose_name="deployment")),
                ("is_external", models.BooleanField(db_default=False, editable=False, verbose_name="external")),
            ],
            options={"verbose_name": "worker", "verbose_name_plural": "workers", "db_table": "skipqueue_worker"},
        ),
        migrations.CreateModel(
            name="WorkerRequest",
            fields=[
                ("worker_id", models.TextField(primary_key=True, serialize=False)),
                ("request", models.TextField()),
            ],
            options={"db_table": "skipqueue_worker_request", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("paused_until", models.DateTimeField(null=True, verbose_name="paused until")),
                ("paused_by", models.TextField(db_default="", verbose_name="paused by")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                ("concurrency", models.SmallIntegerField(null=True, verbose_name="jobs at once")),
                ("rate_interval", models.FloatField(null=True, verbose_name="interval of the rate")),
                ("rate_burst", models.SmallIntegerField(null=True, verbose_name="burst of the rate")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "skipqueue_queue",
                "constraints": [
                    CheckConstraint(
                        name="skipqueue_queue_limits",
                        condition=Q(concurrency__isnull=True) | Q(concurrency__gte=0),
                    ),
                    CheckConstraint(
                        name="skipqueue_queue_rates",
                        condition=(
                            Q(rate_interval__isnull=True) | Q(rate_interval=0) | Q(rate_interval__range=INTERVALS)
                        )
                        & (Q(rate_burst__isnull=True) | Q(rate_burst__gte=0)),
                    ),
                ],
            },
        ),
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
                "indexes": [Index(fields=["due_at", "full_at"], name="skipqueue_rate_due")],
            },
        ),
        migrations.CreateModel(
            name="JobBatch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(db_default="", verbose_name="name")),
                ("parent_id", models.BigIntegerField(null=True, verbose_name="outer batch")),
                ("callbacks", models.JSONField(default=dict, verbose_name="callbacks")),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="created at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("callback_ids", BigIntegers(null=True, verbose_name="callback jobs")),
                ("completed", models.BigIntegerField(null=True, verbose_name="completed")),
                ("failed", models.BigIntegerField(null=True, verbose_name="failed")),
                ("discarded", models.BigIntegerField(null=True, verbose_name="discarded")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "skipqueue_batch",
                "default_permissions": ("view",),
                "indexes": [
                    Index(fields=["id"], name="skipqueue_batch_open", condition=Q(finished_at__isnull=True)),
                    Index(fields=["parent_id"], name="skipqueue_batch_inner", condition=Q(parent_id__isnull=False)),
                    Index(fields=["finished_at"], name="skipqueue_batch_prune", condition=Q(finished_at__isnull=False)),
                    Index(
                        fields=["id"], name="skipqueue_batch_failures", condition=Q(failed__gt=0) | Q(discarded__gt=0)
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PrunedOfBatch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("batch_id", models.BigIntegerField()),
                ("status", models.TextField()),
                ("jobs", models.BigIntegerField()),
            ],
            options={
                "db_table": "skipqueue_batch_pruned",
                "default_permissions": (),
                "indexes": [Index(fields=["batch_id"], name="skipqueue_batch_pruned_of")],
            },
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("pk", models.CompositePrimaryKey("job_id", "position", serialize=False)),
                ("job_id", models.BigIntegerField()),
                ("position", models.IntegerField()),
                ("needs_job_id", models.BigIntegerField()),
                ("after_failure", models.TextField()),
                ("is_met", models.BooleanField(db_default=False)),
                ("pruned_as", models.TextField(null=True)),
            ],
            options={
                "db_table": "skipqueue_dependency",
                "default_permissions": (),
                "indexes": [
                    Index(
                        fields=["needs_job_id", "after_failure", "job_id"],
                        name="skipqueue_dependency_unmet",
                        condition=Q(is_met=False),
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True, verbose_name="name")),
                ("task", models.TextField(verbose_name="task")),
                (
                    "args",
                    models.JSONField(db_default=Value([], models.JSONField()), verbose_name="positional arguments"),
                ),
                (
                    "kwargs",
                    models.JSONField(db_default=Value({}, models.JSONField()), verbose_name="keyword arguments"),
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
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="created at")),
                ("next_run_at", models.DateTimeField(null=True, verbose_name="next run")),
                ("fire_at", models.DateTimeField(null=True)),
                ("last_run_at", models.DateTimeField(null=True, verbose_name="last run")),
                ("last_job_id", models.BigIntegerField(null=True, verbose_name="last job")),
                ("earlier_job_ids", BigIntegers(null=True)),
                ("failing_since", models.DateTimeField(null=True)),
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
                    Index(fields=["fire_at", "id"], name="skipqueue_schedule_fire", condition=Q(paused_at__isnull=True))
                ],
                "constraints": [
                    CheckConstraint(
                        name="skipqueue_schedule_moment",
                        condition=Q(cron="", interval__isnull=False) | Q(~Q(cron=""), interval__isnull=True),
                    )
                ],
            },
        ),
        CreatePartitioned(
            name="ArchivedJob",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("enqueued_at", models.DateTimeField(db_default=Now(), verbose_name="enqueued at")),
                ("run_after", models.DateTimeField(db_default=Now(), verbose_name="run after")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("timeout", models.FloatField(null=True, verbose_name="timeout")),
                ("unique_seconds", models.FloatField(null=True, verbose_name="seconds of the unique key")),
                ("rate_interval", models.FloatField(null=True, verbose_name="interval of the rate")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("attempts", models.SmallIntegerField(db_default=0, verbose_name="attempts")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="maximum of attempts")),
                ("capacity", models.SmallIntegerField(null=True, verbose_name="capacity")),
                ("rate_burst", models.SmallIntegerField(null=True, verbose_name="burst of the rate")),
                ("status", models.TextField(choices=STATUSES, verbose_name="status")),
                ("queue_name", models.TextField(verbose_name="queue")),
                ("task", models.TextField(verbose_name="task")),
                ("args", models.JSONField(default=list, verbose_name="positional arguments")),
                ("kwargs", models.JSONField(default=dict, verbose_name="keyword arguments")),
                ("locked_by", models.TextField(db_default="", verbose_name="worker")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("last_error", models.TextField(db_default="", verbose_name="last error")),
                ("errors", models.JSONField(db_default=Value([], models.JSONField()), verbose_name="errors")),
                ("retention", models.JSONField(null=True, verbose_name="retention")),
                ("unique_key", models.TextField(null=True, verbose_name="unique key")),
                ("metadata", models.JSONField(db_default=Value({}, models.JSONField()), verbose_name="metadata")),
                ("operations", models.JSONField(null=True, verbose_name="operations")),
                ("progress", models.JSONField(null=True, verbose_name="progress")),
                ("logs", models.JSONField(null=True, verbose_name="logs")),
                ("limit_key", models.TextField(null=True, verbose_name="limit key")),
                ("limit_kind", models.TextField(null=True, verbose_name="kind of limit")),
                ("rate_key", models.TextField(null=True, verbose_name="rate key")),
            ],
            options={
                "verbose_name": "archived job",
                "verbose_name_plural": "archived jobs",
                "db_table": "skipqueue_archivedjob",
                "default_permissions": ("view",),
                "indexes": [
                    Index(fields=["finished_at"], name="skipqueue_archivedjob_time"),
                    Index(fields=["task", "finished_at"], name="skipqueue_archivedjob_task"),
                    Index(
                        fields=["status", "finished_at"],
                        name="skipqueue_archivedjob_failed",
                        condition=Q(status__in=["failed", "discarded"]),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RollUp",
            fields=[
                ("pk", models.CompositePrimaryKey("span", "queue_name", "task", "starts_at", serialize=False)),
                ("span", models.SmallIntegerField()),
                ("queue_name", models.TextField()),
                ("task", models.TextField()),
                ("starts_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField(db_default=Now())),
                ("enqueued", models.BigIntegerField(db_default=0)),
                ("completed", models.BigIntegerField(db_default=0)),
                ("retried", models.BigIntegerField(db_default=0)),
                ("snoozed", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("discarded", models.BigIntegerField(db_default=0)),
                ("recovered", models.BigIntegerField(db_default=0)),
                ("deaths", models.BigIntegerField(db_default=0)),
                ("lost", models.BigIntegerField(db_default=0)),
                ("waited", BigIntegers(null=True)),
                ("ran", BigIntegers(null=True)),
                ("waited_seconds", models.FloatField(db_default=0.0)),
                ("ran_seconds", models.FloatField(db_default=0.0)),
                ("waited_longest", models.FloatField(null=True)),
                ("ran_longest", models.FloatField(null=True)),
                ("claims", models.BigIntegerField(db_default=0)),
                ("claim_times", BigIntegers(null=True)),
                ("claim_seconds", models.FloatField(db_default=0.0)),
                ("depth", models.BigIntegerField(null=True)),
                ("oldest_seconds", models.FloatField(null=True)),
                ("claim_pages", models.BigIntegerField(null=True)),
                ("claim_rows", models.BigIntegerField(null=True)),
            ],
            options={
                "db_table": "skipqueue_rollup",
                "default_permissions": (),
                "indexes": [Index(fields=["span", "starts_at"], name="skipqueue_rollup_prune")],
            },
        ),
        migrations.CreateModel(
            name="RollUpProgress",
            fields=[
                ("id", models.SmallIntegerField(db_default=1, primary_key=True, serialize=False)),
                ("counted_to", models.BigIntegerField()),
                ("ready_to", models.BigIntegerField()),
                ("ready_xid", models.BigIntegerField()),
                ("seen_to", models.BigIntegerField()),
                ("ready_at", models.DateTimeField(db_default=Now())),
                ("changed_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "skipqueue_rollup_progress", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="FailureRollUp",
            fields=[
                ("pk", models.CompositePrimaryKey("span", "task", "exception", "place", "starts_at", serialize=False)),
                ("span", models.SmallIntegerField()),
                ("task", models.TextField()),
                ("exception", models.TextField()),
                ("place", models.TextField()),
                ("starts_at", models.DateTimeField()),
                ("number", models.BigIntegerField()),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("last_line", models.IntegerField(null=True)),
                ("last_job_id", models.BigIntegerField()),
                ("first_deployment", models.TextField(db_default="")),
                ("last_deployment", models.TextField(db_default="")),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acknowledged_by", models.TextField(db_default="")),
                ("note", models.TextField(db_default="")),
                ("acknowledged_number", models.BigIntegerField(null=True)),
                ("came_back_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "skipqueue_failure_rollup",
                "default_permissions": (),
                "permissions": (("acknowledge_cause", "Can acknowledge causes of failures"),),
                "indexes": [Index(fields=["span", "starts_at"], name="skipqueue_failure_rollup_prune")],
            },
        ),
        migrations.CreateModel(
            name="Deployment",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("first_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "skipqueue_deployment", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("pk", models.CompositePrimaryKey("rule", "subject", serialize=False)),
                ("rule", models.TextField(verbose_name="rule")),
                ("subject", models.TextField(verbose_name="subject")),
                ("severity", models.TextField(db_default="", verbose_name="severity")),
                ("title", models.TextField(db_default="", verbose_name="title")),
                ("since", models.DateTimeField(db_default=Now(), verbose_name="since")),
                ("found_at", models.DateTimeField(db_default=Now())),
                ("raised_at", models.DateTimeField(null=True)),
                ("calm_since", models.DateTimeField(null=True)),
                ("over_at", models.DateTimeField(null=True)),
                ("claimed_at", models.DateTimeField(null=True)),
                ("is_announced", models.BooleanField(db_default=False)),
            ],
            options={"db_table": "skipqueue_incident", "default_permissions": ()},
        ),
        *[AddConstraint(model, constraint) for model, constraint in CONSTRAINTS_OF_OTHERS],
        migrations.RunPython(run_on_postgresql(JOB_STORAGE, WORKER_STORAGE, ROLLUP_STORAGE), migrations.RunPython.noop),
    ]
