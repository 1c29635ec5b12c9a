"""The time of the tokens, for tests that pass the time."""

from datetime import datetime, timedelta

from django.db.models import F

from .models import RateBucket


class Tokens:
    """The `Clock` of rates (see `testing.run`)."""

    def __init__(self, alias: str) -> None:
        self._buckets = RateBucket.objects.using(alias)

    def due(self) -> list[datetime]:
        return [due_at for due_at in self._buckets.values_list("due_at", flat=True) if due_at is not None]

    def put_forward(self, passed: timedelta) -> None:
        self._buckets.update(full_at=F("full_at") - passed, due_at=F("due_at") - passed)

    def put_to_the_end(self) -> None:
        """Have all tokens of all rates be there."""
        self._buckets.all().delete()
