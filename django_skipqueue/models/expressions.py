"""The names of the queue's tables, and SQL expressions in the spelling of the indexes.

PostgreSQL uses an index only for an expression that is spelled as in the index.
"""

import math
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
"""Django writes `-F("priority")` as another expression, for which there is no index."""

CLAIM_ORDER: "tuple[F | Func[Any], ...]" = (F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id"))
"""The order in which the jobs of a queue are claimed. Index: claim."""


CAUSE = Func(
    template="hashtextextended(task || ' ' || COALESCE(errors->-1->>'exception', '') || ' ' || "
    "COALESCE(errors->-1->>'place', ''), 0)",
    output_field=BigIntegerField(),
)
"""The cause of the job's last error as a number of 64 bits: an entry of an index must not be long. Index: cause."""


FIRST_TIME, END_OF_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Datetimes between these convert to any time zone without overflow."""


def are_times(*columns: str) -> Q:
    """The condition that Python has these times. PostgreSQL also has infinity, and years before 1 and after 9999."""
    return Q(
        *(Q(**{column: None}) | Q(**{f"{column}__gte": FIRST_TIME, f"{column}__lt": END_OF_TIME}) for column in columns)
    )


def is_number(column: str) -> Q:
    """The condition that this number breaks neither Python nor a statement: NaN, infinity and less than 0 do."""
    return Q(**{column: None}) | Q(**{f"{column}__gte": 0, f"{column}__lt": math.inf})


def has_cause(cause: Cause) -> "Exact[Any]":
    """The condition that a job's last error has this cause."""
    hashed = Func(Value(" ".join(cause)), Value(0), function="hashtextextended", output_field=BigIntegerField())
    return Exact(CAUSE, hashed)


class Row(Func):
    """A row of values, so that one comparison can select a range of an index."""

    template = "(%(expressions)s)"
    output_field = TextField()  # never read: rows are only compared
