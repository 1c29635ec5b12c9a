"""The names of the queue's tables, and SQL expressions in the exact spelling of the indexes.

PostgreSQL does not use an index for any other spelling.
"""

from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db.models import BigIntegerField, F, Func, Q, SmallIntegerField, TextField, Value
from django.db.models.lookups import Exact

from ..values.records import Cause


def table_names() -> list[str]:
    """All tables of this app's models, in any database."""
    models = apps.get_app_config("django_skipqueue").get_models(include_auto_created=True)
    return [model._meta.db_table for model in models]


MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=SmallIntegerField())
"""Django's own `-F("priority")` becomes another expression, for which there is no index."""

CLAIM_ORDER: "tuple[F | Func[Any], ...]" = (F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id"))
"""The order in which the jobs of a queue are claimed. Index: claim."""


HOLDS_KEY = Q(unique_key__isnull=False) & (
    Q(unique_seconds__gt=0) | (Q(finished_at__isnull=True) & (Q(unique_seconds__isnull=True) | Q(lease=0)))
)
"""The condition that a job holds its unique key. `parts.unique.enqueue` explains it. Index: unique."""

HALTS = Q(status="failed", limit_kind="halting")
"""The condition that a sequence has halted at a job: it goes on when an operator retries or discards it. Index: halted.
"""

CAUSE = Func(
    template="hashtextextended(task || ' ' || COALESCE(errors->-1->>'exception', '') || ' ' || "
    "COALESCE(errors->-1->>'place', ''), 0)",
    output_field=BigIntegerField(),
)
"""The cause of the job's last error as a number of 64 bits: an entry of an index must not be long. Index: cause."""


FIRST_TIME, END_OF_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Datetimes between these convert to any time zone without overflow."""


def are_times(*columns: str) -> Q:
    """The condition that Python has these times: PostgreSQL also has infinity, and years before 1 and after 9999."""
    return Q(
        *(Q(**{column: None}) | Q(**{f"{column}__gte": FIRST_TIME, f"{column}__lt": END_OF_TIME}) for column in columns)
    )


def has_cause(cause: Cause) -> "Exact[Any]":
    """The condition that a job's last error has this cause."""
    hashed = Func(Value(" ".join(cause)), Value(0), function="hashtextextended", output_field=BigIntegerField())
    return Exact(CAUSE, hashed)


class Row(Func):
    """A row of values, so that one comparison can select a range of an index."""

    template = "(%(expressions)s)"
    output_field = TextField()  # never read: rows are only compared


HAS_BEGUN = Q(started_at__isnull=False) | Q(attempts__gt=0)
"""The condition that a job has begun, also before a manual retry: see `parts.limits.admit`. Index: limit_held."""

LIMIT_RANK = Func(
    template="(CASE WHEN limit_kind IN ('concurrency', 'fair') THEN -priority "
    "WHEN started_at IS NOT NULL OR attempts > 0 THEN -1 ELSE 0 END)",
    output_field=SmallIntegerField(),
)
"""The order in which the blocked jobs of a key are admitted, before their ids. Index: limit_waiting."""
