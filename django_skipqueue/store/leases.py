"""The verbs that say who holds which jobs."""

from collections.abc import Iterable

from ..values.records import LeaseRef
from . import sql
from .parameters import leases_as_values
from .statements import Statements


class Leases(Statements):
    """For whoever runs jobs, and for supervisors after a worker died."""

    def has_jobs(self, worker_id: str) -> bool:
        """Whether any job is running for this worker."""
        return bool(self.rows(sql.WORKER_HAS_JOBS, {"worker_id": worker_id}))

    def lost_leases(self, leases: Iterable[LeaseRef]) -> dict[LeaseRef, str | None]:
        """Which of these leases have passed on: with the reason where the job was cancelled, else with `None`."""
        rows = self.rows(sql.LOST_LEASES, leases_as_values(leases))
        return {(id, lease): reason for id, lease, reason in rows}

    def locked(self, leases: Iterable[LeaseRef]) -> set[int]:
        """The ids of those jobs whose rows somebody else has locked this moment. Waits for nobody."""
        return {id for (id,) in self.rows(sql.LOCKED_ROWS, leases_as_values(leases))}

    def heartbeat_job(self, job_id: int, lease: int) -> bool:
        """Keep a job that was claimed by hand from being recovered; whether its lease still holds."""
        return bool(self.rows(sql.HEARTBEAT_JOB, {"id": job_id, "lease": lease}))
