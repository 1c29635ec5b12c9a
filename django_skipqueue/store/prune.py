"""The methods that delete finished jobs."""

from collections.abc import Iterable

from django.db import transaction

from ..conf import settings
from ..events.events import JobsPruned
from . import sql
from .parameters import as_array
from .statements import BATCH, Statements


class Pruning(Statements):
    """Used by supervisors and `prunejobs`. Skips rows that others have locked."""

    def prune(self, *, limit: int = BATCH, skipped: Iterable[int] = ()) -> dict[str, int]:
        """Delete finished jobs past their retention, except `skipped`. Returns the number deleted, by status.

        Runs in one transaction: if one row cannot be deleted, none is. `Pruner` then finds out which row it is.
        """
        with transaction.atomic(using=self.alias):
            ids = self.expired(limit=limit, skipped=skipped)
            counts = dict(self.rows(sql.PRUNE, {"ids": as_array(ids)})) if ids else {}
        if counts:
            self.send(JobsPruned(self.alias, counts))
        return counts

    def expired(self, *, limit: int = BATCH, skipped: Iterable[int] = ()) -> list[int]:
        """The ids of the jobs to delete next. Locks their rows until the caller's transaction ends."""
        kept = {status: settings.retention_of(status) for status in ("completed", "discarded", "failed")}
        values = {**kept, "limit": limit, "skipped": as_array(skipped)}
        return [id for (id,) in self.rows(sql.EXPIRED, values)]
