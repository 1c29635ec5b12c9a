"""Create the table of the app."""

from datetime import UTC, datetime

from django.db import migrations, models
from django.db.models import Q

from ....migrations._postgresql import AddConstraint

FIRST, END = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
IS_TIME = Q(Q(reached_at=None) | Q(reached_at__gte=FIRST, reached_at__lt=END))


class Migration(migrations.Migration):
    initial = True

    dependencies = [("django_skipqueue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="WorkerOfCelery",
            fields=[
                ("worker_id", models.TextField(primary_key=True, serialize=False)),
                ("relay_of", models.TextField(db_default="", verbose_name="relay of")),
                ("reached_at", models.DateTimeField(null=True, verbose_name="broker reached at")),
                ("refused", models.BigIntegerField(db_default=0, verbose_name="refused jobs")),
            ],
            options={"db_table": "skipqueue_celery_worker", "default_permissions": ()},
        ),
        AddConstraint(
            "workerofcelery", models.CheckConstraint(name="skipqueue_celery_worker_times", condition=IS_TIME)
        ),
    ]
