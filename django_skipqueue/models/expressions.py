"""Expressions that are written as the indexes have them: to PostgreSQL, any other spelling is another expression."""

from typing import Any

from django.db.models import F, Func, SmallIntegerField, TextField

MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=SmallIntegerField())
"""Not Django's own `-F("priority")`, which no index has."""

CLAIM_ORDER: "tuple[F | Func[Any], ...]" = (F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id"))
"""The order in which the jobs of a queue are claimed. Index: claim."""


class Row(Func):
    """Several values as one, so that a single comparison can say where in an index a list ends."""

    template = "(%(expressions)s)"
    output_field = TextField()  # nobody reads it: rows are only compared
