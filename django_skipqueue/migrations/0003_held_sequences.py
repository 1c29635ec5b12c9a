"""Have a job that is held between two of its steps keep its place in its sequence.

The new index is there before the old index goes, so that every statement has one of the two. No operation locks the
table of jobs against writes.
"""

from django.db import migrations
from django.db.models import BooleanField, Func, Index, Q

from ._postgresql import AddIndexConcurrently, RemoveIndexConcurrently, RenameIndex

HOLDS_PERMIT = Func(
    template="""(
    status IN ('queued', 'running')
    OR gate = 'rate'
    OR (
        (started_at IS NOT NULL OR attempts > 0)
        AND limit_kind IN ('sequence', 'halting')
        AND (status = 'scheduled' OR gate = 'held')
    )
    OR (limit_kind = 'halting' AND status = 'failed')
)""",
    output_field=BooleanField(),
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_skipqueue", "0002_steps")]

    operations = [
        AddIndexConcurrently(
            "job",
            Index(
                fields=["limit_key"],
                name="skipqueue_job_limit_held_new",
                condition=Q(limit_key__isnull=False) & Q(HOLDS_PERMIT),
            ),
        ),
        RemoveIndexConcurrently("job", "skipqueue_job_limit_held"),
        RenameIndex("job", old_name="skipqueue_job_limit_held_new", new_name="skipqueue_job_limit_held"),
    ]
