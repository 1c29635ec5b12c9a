"""SQL expressions in the exact spelling of the indexes: PostgreSQL does not use an index for any other spelling."""

from typing import Any

from django.db.models import F, Func, SmallIntegerField, TextField

MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=SmallIntegerField())
"""Django's own `-F("priority")` becomes another expression, for which there is no index."""

CLAIM_ORDER: "tuple[F | Func[Any], ...]" = (F("queue_name"), MINUS_PRIORITY, F("run_after"), F("id"))
"""The order in which the jobs of a queue are claimed. Index: claim."""


class Row(Func):
    """A row of values, so that one comparison can select a range of an index."""

    template = "(%(expressions)s)"
    output_field = TextField()  # never read: rows are only compared
