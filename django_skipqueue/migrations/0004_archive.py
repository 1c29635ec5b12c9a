"""Make the archive: the table of finished jobs that were pruned, in PostgreSQL partitioned by month."""

from typing import Any

import django.db.models.functions.datetime
from django.db import migrations, models

# The columns of one length first, so that a row has no padding. A partitioned table has the time in its primary key.
TABLE = """
CREATE TABLE skipqueue_archivedjob (
    id bigint NOT NULL,
    finished_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    run_after timestamptz NOT NULL,
    started_at timestamptz,
    timeout double precision,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
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
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);
CREATE INDEX skipqueue_archivedjob_time ON skipqueue_archivedjob (finished_at);
CREATE INDEX skipqueue_archivedjob_task ON skipqueue_archivedjob (task, finished_at);
CREATE INDEX skipqueue_archivedjob_failed ON skipqueue_archivedjob (status, finished_at)
    WHERE status IN ('failed', 'discarded')
"""


class CreatePartitioned(migrations.CreateModel):
    """The table as `TABLE` says, where the queue can live; in another database of the project an ordinary one."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django."""
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        elif self.allow_migrate_model(schema_editor.connection.alias, to_state.apps.get_model(app_label, self.name)):
            schema_editor.execute(TABLE)


class Migration(migrations.Migration):
    """Makes it, without a partition: supervisors make those once the archive is switched on."""

    dependencies = (("django_skipqueue", "0003_queue"),)

    operations = [
        CreatePartitioned(
            name="ArchivedJob",
            fields=[
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
                ("locked_by", models.TextField(db_default="", verbose_name="worker")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("last_error", models.TextField(db_default="", verbose_name="last error")),
                ("errors", models.JSONField(db_default=models.Value([], models.JSONField()), verbose_name="errors")),
                ("timeout", models.FloatField(null=True, verbose_name="timeout")),
                ("retention", models.JSONField(null=True, verbose_name="retention")),
                ("unique_key", models.TextField(null=True, verbose_name="unique key")),
                (
                    "metadata",
                    models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="metadata"),
                ),
                ("operations", models.JSONField(null=True, verbose_name="operations")),
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
            ],
            options={
                "verbose_name": "archived job",
                "verbose_name_plural": "archived jobs",
                "db_table": "skipqueue_archivedjob",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["finished_at"], name="skipqueue_archivedjob_time"),
                    models.Index(fields=["task", "finished_at"], name="skipqueue_archivedjob_task"),
                    models.Index(
                        condition=models.Q(("status__in", ["failed", "discarded"])),
                        fields=["status", "finished_at"],
                        name="skipqueue_archivedjob_failed",
                    ),
                ],
            },
        ),
    ]
