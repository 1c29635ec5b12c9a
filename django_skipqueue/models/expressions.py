"""The names of the queue's tables, and SQL expressions that are spelled exactly as in the indexes.

PostgreSQL uses the index on an expression only if a query spells the expression in the same way.
"""

import math
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db.models import BigIntegerField, F, Func, Q, SmallIntegerField, TextField, Value
from django.db.models.lookups import Exact

from ..values.records import Cause


def table_names() -> list[str]:
    """The names of the tables of all models of this app."""
    models = apps.get_app_config("django_skipqueue").get_models(include_auto_created=True)
    return [model._meta.db_table for model in models]


MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=SmallIntegerField())
"""The negated priority. Django writes `-F("priority")` as another expression, for which there is no index."""

CLAIM_ORDER: "tuple[F | Func[Any], ...]" = (F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id"))
"""The order in which the jobs of a queue are claimed. Index: claim."""


CAUSE = Func(
    template="hashtextextended(task || ' ' || COALESCE(errors->-1->>'exception', '') || ' ' || "
    "COALESCE(errors->-1->>'place', ''), 0)",
    output_field=BigIntegerField(),
)
"""The cause of the job's last error, hashed to a 64-bit number, because index entries must be short. Index: cause."""


FIRST_TIME, END_OF_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""The bounds between which a datetime converts to any time zone without overflow."""


def are_times(*columns: str) -> Q:
    """The condition that Python can represent the times in these columns, unlike infinity or years after 9999."""
    return Q(
        *(Q(**{column: None}) | Q(**{f"{column}__gte": FIRST_TIME, f"{column}__lt": END_OF_TIME}) for column in columns)
    )


def is_number(column: str) -> Q:
    """The condition that this column is a finite number of at least 0, or NULL. NaN would break statements."""
    return Q(**{column: None}) | Q(**{f"{column}__gte": 0, f"{column}__lt": math.inf})


def has_cause(cause: Cause) -> "Exact[Any]":
    """The condition that the last error of a job has this cause."""
    hashed = Func(Value(" ".join(cause)), Value(0), function="hashtextextended", output_field=BigIntegerField())
    return Exact(CAUSE, hashed)


class Row(Func):
    """An SQL row of values, such as `(a, b)`, so that one comparison of rows can select a range of an index."""

    template = "(%(expressions)s)"
    output_field = TextField()  # never read: rows are only compared
