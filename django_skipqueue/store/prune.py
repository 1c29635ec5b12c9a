"""The methods that delete finished jobs, or move them to the archive."""

from collections.abc import Iterable
from datetime import timedelta

from django.db import transaction

from ..conf import settings
from ..events.events import JobsPruned
from . import policy_sql, sql
from .parameters import as_array
from .statements import BATCH, Statements


class Pruning(Statements):
    """Used by supervisors and `prunejobs`. Skips rows that others have locked."""

    def prune(self, *, limit: int = BATCH, skipped: Iterable[int] = (), grace: float = 0.0) -> dict[str, int]:
        """Delete finished jobs past their retention, except `skipped`. Returns the number deleted, by status.

        `grace`: the seconds after its retention for which a job is kept.

        With `SKIPQUEUE["ARCHIVE"]` they move to the archive. Runs in one transaction: if one row cannot be deleted or
        archived, none is. `Pruner` then finds out which row it is.
        """
        with transaction.atomic(using=self.alias):
            ids = self.expired(limit=limit, skipped=skipped, grace=grace)
            counts = self._delete(ids) if ids else {}
        if counts:
            self.send(JobsPruned(self.alias, counts))
        return counts

    def _delete(self, ids: list[int]) -> dict[str, int]:
        if settings.has_archive:
            return dict(self.rows(policy_sql.ARCHIVE, {"ids": as_array(ids), "kept": settings.archive_retention}))
        return dict(self.rows(sql.PRUNE, {"ids": as_array(ids)}))

    def expired(self, *, limit: int = BATCH, skipped: Iterable[int] = (), grace: float = 0.0) -> list[int]:
        """The ids of the jobs to delete next. Locks their rows until the caller's transaction ends."""
        values = {**_retentions(), "grace": grace, "limit": limit, "skipped": as_array(skipped)}
        return [id for (id,) in self.rows(sql.EXPIRED, values)]

    def prune_lag(self) -> float:
        """The seconds for which the retention of the oldest job to delete has been over; 0 if there is none.

        Up to a minute and a half is usual. Costs a few index probes.
        """
        ((lag,),) = self.rows(sql.PRUNE_LAG, _retentions())
        return float(lag or 0.0)


def _retentions() -> dict[str, timedelta | None]:
    return {status: settings.retention_of(status) for status in ("completed", "discarded", "failed")}
