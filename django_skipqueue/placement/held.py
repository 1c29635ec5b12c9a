"""Asks a database that gets no new jobs which unique keys its jobs hold."""

from collections.abc import Collection
from datetime import timedelta


def held_keys(alias: str, keys: Collection[str]) -> set[str]:
    """The unique keys that a job in this database holds, among these. Index: unique."""
    from django.db.models import DurationField, ExpressionWrapper, F, Q  # not while apps are loading
    from django.db.models.functions import Now

    from ..models import Job
    from ..models.expressions import HOLDS_KEY

    window = ExpressionWrapper(F("unique_seconds") * timedelta(seconds=1), DurationField())
    holders = Job._base_manager.using(alias).filter(HOLDS_KEY, unique_key__in=keys)
    in_time = holders.filter(Q(finished_at=None) | Q(enqueued_at__gt=Now() - window))
    return {key for (key,) in in_time.values_list("unique_key") if key is not None}
