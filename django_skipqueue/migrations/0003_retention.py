"""An index for the jobs that have a retention of their own, so that pruning finds them without looking at the others."""

from django.db import migrations, models

from ._postgresql import AddIndex

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


class Migration(migrations.Migration):
    """Add the index."""

    dependencies = (("django_skipqueue", "0002_storage"),)

    operations = (AddIndex(model_name="job", index=INDEX),)
