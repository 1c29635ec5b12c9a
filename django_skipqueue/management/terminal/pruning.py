"""The pruning by hand that `manage.py prunejobs` and `skipqueue prune` share."""

from collections import Counter

from django.core.management.base import CommandError
from django.db import DatabaseError

from ...conf import settings
from ...services.archive import keep_partitions
from ...services.prune import Pruner
from ...store import Store


def prune_all(store: Store) -> Counter[str]:
    """Prune until no job is left to prune. Returns the number of jobs, by status.

    In batches, each a transaction of its own, so that it may be stopped at any time.
    """
    pruner = Pruner(store)
    pruned = Counter(pruner.batch())
    while pruner.has_more:
        pruned.update(pruner.batch())
    return pruned


def summary(pruned: Counter[str]) -> str:
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(pruned.items())) or "none were old enough"
    return f"{'Archived' if settings.has_archive else 'Deleted'} {pruned.total():,} jobs: {by_status}."


def keep_all_partitions(store: Store) -> None:
    try:
        while keep_partitions(store):
            pass
    except DatabaseError as error:
        raise CommandError(f"The partitions of the archive could not be made or dropped: {error}") from None
