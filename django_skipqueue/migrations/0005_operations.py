"""What operators did to a job; ids of workers that say their names; and no row that a statement could not bear.

Backwards, the rows of workers go: their next heartbeat makes them anew.
"""

import datetime
from typing import Any

from django.db import migrations, models
from django.db.models.lookups import Exact

from ._postgresql import AddConstraint


def forget_workers(_apps: Any, schema_editor: Any) -> None:
    """Remove the ids that are no UUIDs."""
    schema_editor.execute("DELETE FROM skipqueue_worker")


def json_type(column: str) -> models.Func:
    """What kind of JSON stands in a column."""
    return models.Func(models.F(column), function="jsonb_typeof", output_field=models.TextField())


class Migration(migrations.Migration):
    """Add the column and the CHECKs, and change the type of the ids."""

    dependencies = (("django_skipqueue", "0004_only_keys"),)

    operations = (
        migrations.AddField("job", "operations", models.JSONField(null=True, verbose_name="operations")),
        migrations.AlterField("worker", "id", models.TextField(editable=False, primary_key=True, serialize=False)),
        migrations.RunPython(migrations.RunPython.noop, forget_workers),
        AddConstraint(
            "job",
            models.CheckConstraint(
                condition=models.Q(("priority__gte", -100), ("priority__lte", 100)), name="skipqueue_job_priority"
            ),
        ),
        AddConstraint(
            "job",
            models.CheckConstraint(
                condition=models.Q(
                    ("run_after__gte", datetime.datetime(1, 1, 2, tzinfo=datetime.UTC)),
                    ("run_after__lt", datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)),
                ),
                name="skipqueue_job_run_after",
            ),
        ),
        AddConstraint(
            "job",
            models.CheckConstraint(
                condition=models.Q(Exact(json_type("errors"), "array"), Exact(json_type("operations"), "array")),
                name="skipqueue_job_lists",
            ),
        ),
    )
