"""Have a job that is held between two of its steps keep its place in its sequence.

The new index is there before the old index goes, so that every statement has one of the two. No operation locks the
table of jobs against writes.
"""

from django.db import migrations, models
from django.db.models import Q

from ._postgresql import AddIndexConcurrently, RemoveIndexConcurrently, RenameIndex

HAS_BEGUN = Q(started_at__isnull=False) | Q(attempts__gt=0)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_skipqueue", "0002_steps")]

    operations = [
        AddIndexConcurrently(
            "job",
            models.Index(
                fields=["limit_key"],
                name="skipqueue_job_limit_held_new",
                condition=Q(limit_key__isnull=False)
                & (
                    Q(status__in=["queued", "running"])
                    | Q(HAS_BEGUN, Q(status="scheduled") | Q(gate="held"), limit_kind__in=["sequence", "halting"])
                    | Q(limit_kind="halting", status="failed")
                    | Q(gate="rate")
                ),
            ),
        ),
        RemoveIndexConcurrently("job", "skipqueue_job_limit_held"),
        RenameIndex("job", old_name="skipqueue_job_limit_held_new", new_name="skipqueue_job_limit_held"),
    ]
