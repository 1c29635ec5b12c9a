"""The verbs of the supervisor's services: each call is one batch; a full one says that there may be more."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..conf import settings
from ..values.codec import shorten
from ..values.records import RecoveredJob
from . import sql
from .notify import wake
from .parameters import as_array
from .statements import Statements

BATCH = 1_000
"""How many rows one statement of maintenance touches at most."""

NOT_HEARD_OF = "its worker was not heard of within the worker timeout"


class Maintaining(Statements):
    """For supervisors; idempotent, and what others have locked is skipped."""

    def admit(self, *, limit: int = BATCH) -> dict[str, int]:
        """Make scheduled jobs that are due claimable; how many in each queue."""
        admitted = dict(self._rows(sql.ADMIT, {"limit": limit}))
        wake(self.db, admitted)
        return admitted

    def next_due(self) -> float | None:
        """The seconds until the next scheduled job is due, below 0 if it is overdue; `None` without one."""
        rows = self._rows(sql.NEXT_DUE)
        return rows[0][0] if rows else None

    def recover(
        self,
        *,
        worker_timeout: float | None = None,
        worker_ids: Sequence[str] | None = None,
        job_ids: Sequence[int] | None = None,
        reason: str = NOT_HEARD_OF,
        limit: int = BATCH,
    ) -> list[RecoveredJob]:
        """Take back the jobs of `worker_ids`, or of every holder not heard of for `worker_timeout` seconds.

        Default: the setting. Only `job_ids`, if given. The attempt is charged: a job that has none left fails.
        """
        age = 0.0 if worker_ids is not None else settings.worker_timeout if worker_timeout is None else worker_timeout
        return self._recover(
            {
                "age": age,
                "locked_before": None,
                "worker_ids": None if worker_ids is None else list(worker_ids),
                "job_ids": None if job_ids is None else list(job_ids),
                "reason": shorten(reason),
                "limit": limit,
            }
        )

    def recover_without_worker(self, *, locked_before: datetime, limit: int = BATCH) -> list[RecoveredJob]:
        """Take back jobs whose holder has no row among the workers, and was not heard of since `locked_before`."""
        return self._recover(
            {
                "age": 0.0,
                "locked_before": locked_before,
                "worker_ids": None,
                "job_ids": None,
                "reason": NOT_HEARD_OF,
                "limit": limit,
            }
        )

    def _recover(self, values: Mapping[str, Any]) -> list[RecoveredJob]:
        recovered = [RecoveredJob._make(row) for row in self._rows(sql.RECOVER, values)]
        wake(self.db, (job.queue_name for job in recovered if job.status == "queued"))
        return recovered

    def prune(self, *, limit: int = BATCH, skipped: Iterable[int] = ()) -> dict[str, int]:
        """Delete finished jobs past their retention, but for those `skipped`; how many of each status.

        One statement: where one row cannot be deleted, none is. `Pruner` copes with that.
        """
        return dict(self._rows(sql.PRUNE, _expired(limit, skipped)))

    def expired(self, *, limit: int = BATCH, skipped: Iterable[int] = ()) -> list[int]:
        """The ids of the jobs that `prune` would delete next."""
        return [id for (id,) in self._rows(sql.EXPIRED, _expired(limit, skipped))]


def _expired(limit: int, skipped: Iterable[int]) -> dict[str, Any]:
    kept = {status: settings.retention_of(status) for status in ("completed", "discarded", "failed")}
    return {**kept, "limit": limit, "skipped": as_array(skipped)}
