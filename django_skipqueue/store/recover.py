"""The verbs that take back the jobs of workers that are gone."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..conf import settings
from ..events.events import JobsRecovered
from ..values.codec import shorten
from ..values.records import RecoveredJob
from . import sql
from .notify import wake
from .statements import BATCH, Statements

NOT_HEARD_OF = "its worker was not heard of within the worker timeout"


class Recovering(Statements):
    """For supervisors; idempotent, and what others have locked is skipped."""

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
        recovered = [RecoveredJob._make(row) for row in self.rows(sql.RECOVER, values)]
        wake(self.alias, (job.queue_name for job in recovered if job.status == "queued"))
        if recovered:
            self.send(JobsRecovered(recovered))
        return recovered
