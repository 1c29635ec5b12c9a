"""An index for the jobs that have a retention of their own, so that pruning finds them without looking at the others."""

from typing import Any

from django.db import migrations, models

INDEX = models.Index(
    models.Func(
        output_field=models.DateTimeField(),
        template=(
            "((finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8))"
        ),
    ),
    condition=models.Q(("metadata__has_key", "retention"), ("status__in", ["completed", "failed", "discarded"])),
    name="skipqueue_job_prune_own",
)


class AddIndexOnPostgreSQL(migrations.AddIndex):
    """Does nothing in the project's other databases, whose SQL has no such expression and whose tables stay empty."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django."""
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django."""
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    """Add the index."""

    dependencies = (("django_skipqueue", "0002_storage"),)

    operations = (AddIndexOnPostgreSQL(model_name="job", index=INDEX),)
