"""The methods that recover the jobs of dead workers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..conf import settings
from ..events.events import JobsRecovered
from ..values.codec import shorten
from ..values.records import LeaseRef, RecoveredJob, session_name
from . import sql
from .notify import LIMITS_PAYLOAD, notify_supervisors, wake
from .statements import BATCH, Statements

NO_HEARTBEAT = "its worker wrote no heartbeat within the worker timeout"


class Recovering(Statements):
    """Used by supervisors and relays. Skips rows that others have locked, so several of them may call it at once."""

    def end_sessions(self, worker_ids: Sequence[str]) -> tuple[int, int]:
        """End the database sessions of dead workers that are in a transaction: they may have locked their jobs.

        Returns how many were told to end, which takes PostgreSQL a moment, and how many this role may not end.
        """
        names = [name for name in map(session_name, worker_ids) if name]
        told = [is_told for (is_told,) in self.rows(sql.END_SESSIONS, {"names": names})] if names else []
        return sum(told), told.count(False)

    def recover(
        self,
        *,
        worker_timeout: float | None = None,
        worker_ids: Sequence[str] | None = None,
        job_ids: Sequence[int] | None = None,
        crashed: bool = False,
        reason: str = NO_HEARTBEAT,
        limit: int = BATCH,
    ) -> list[RecoveredJob]:
        """Recover the jobs of `worker_ids`, or of every holder without a heartbeat for `worker_timeout` seconds.

        Default: the setting. Only `job_ids`, if given. The attempt is charged; a job without attempts left fails.
        `crashed`: a process has ended, for which the jobs may be the cause. So they wait for some seconds.
        """
        age = 0.0 if worker_ids is not None else settings.worker_timeout if worker_timeout is None else worker_timeout
        return self._recover(
            age=age,
            worker_ids=None if worker_ids is None else list(worker_ids),
            job_ids=None if job_ids is None else list(job_ids),
            crashed=crashed,
            reason=shorten(reason),
            limit=limit,
        )

    def recover_without_worker(self, *, locked_before: datetime, limit: int = BATCH) -> list[RecoveredJob]:
        """Recover jobs whose holder has no worker row and has written no heartbeat since `locked_before`."""
        return self._recover(locked_before=locked_before, reason=NO_HEARTBEAT, limit=limit)

    def recover_returned(self, refs: Sequence[LeaseRef], *, reason: str) -> list[RecoveredJob]:
        """Recover those of the jobs with these leases that have begun. The carrier gave all of them back."""
        ids, leases = [id for id, _ in refs], [lease for _, lease in refs]
        return self._recover(ids=ids, leases=leases, reason=reason, limit=len(refs))

    def _recover(self, **chosen: Any) -> list[RecoveredJob]:
        """Run RECOVER. A parameter that is not given restricts nothing."""
        nothing = {
            "age": 0.0,
            "crashed": False,
            **dict.fromkeys(["locked_before", "worker_ids", "job_ids", "ids", "leases", "carrier", "carrier_id"]),
        }
        recovered = [RecoveredJob._make(row) for row in self.rows(sql.RECOVER, nothing | self.carrier | chosen)]
        wake(self, (job.queue_name for job in recovered if job.status == "queued"))
        if any(job.status in ("blocked", "scheduled") for job in recovered):
            notify_supervisors(self, LIMITS_PAYLOAD)  # a scheduled one has given its permit up
        if recovered:
            self.send(JobsRecovered(self.alias, recovered))
        return recovered
