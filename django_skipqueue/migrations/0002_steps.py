"""The tables of the steps of jobs, of their signals, and of their children."""

from django.db import migrations, models

from ._postgresql import AddField, AddIndex


class Migration(migrations.Migration):
    dependencies = [
        ("django_skipqueue", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobChild",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "parent_id", "name", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("parent_id", models.BigIntegerField()),
                ("name", models.TextField()),
                ("position", models.IntegerField()),
                ("job_id", models.BigIntegerField()),
            ],
            options={
                "db_table": "skipqueue_child",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="JobSignal",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("job_id", models.BigIntegerField()),
                ("name", models.TextField()),
                ("payload", models.JSONField()),
                ("sent_at", models.DateTimeField()),
                ("by", models.TextField(db_default="")),
                ("reason", models.TextField(db_default="")),
                ("taken_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "skipqueue_signal",
                "permissions": (("signal_job", "Can send signals to job"),),
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="JobStep",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("job_id", models.BigIntegerField()),
                ("name", models.TextField()),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("step", "step"),
                            ("sleep", "sleep"),
                            ("wait", "wait"),
                            ("run", "run"),
                            ("each", "each"),
                        ]
                    ),
                ),
                ("number", models.IntegerField()),
                ("attempt", models.IntegerField()),
                ("started_at", models.DateTimeField()),
                ("recorded_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                ("wakes_at", models.DateTimeField(null=True)),
                ("is_waiting", models.BooleanField(null=True)),
            ],
            options={
                "db_table": "skipqueue_step",
                "default_permissions": (),
            },
        ),
        AddIndex(
            model_name="jobchild",
            index=models.Index(fields=["job_id"], name="skipqueue_child_job"),
        ),
        AddIndex(
            model_name="jobsignal",
            index=models.Index(
                condition=models.Q(("taken_at", None)), fields=["job_id", "name"], name="skipqueue_signal_untaken"
            ),
        ),
        AddIndex(
            model_name="jobsignal",
            index=models.Index(
                condition=models.Q(("taken_at", None)), fields=["sent_at"], name="skipqueue_signal_oldest"
            ),
        ),
        AddIndex(
            model_name="jobstep",
            index=models.Index(
                condition=models.Q(("is_waiting", True)), fields=["started_at"], name="skipqueue_step_waiting"
            ),
        ),
        AddIndex(
            model_name="jobstep",
            index=models.Index(
                condition=models.Q(("is_waiting", True)), fields=["wakes_at"], name="skipqueue_step_due"
            ),
        ),
        AddIndex(
            model_name="jobstep",
            index=models.Index(
                condition=models.Q(("kind", "sleep")), fields=["wakes_at"], name="skipqueue_step_sleeping"
            ),
        ),
        AddField(
            model_name="archivedjob",
            name="records",
            field=models.JSONField(null=True),
        ),
        AddField(
            model_name="worker",
            name="version",
            field=models.TextField(db_default="", verbose_name="version"),
        ),
    ]
