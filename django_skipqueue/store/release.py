"""The verbs that give claimed jobs back, and those that say who holds what."""

from collections.abc import Iterable

from ..events.events import JobsReleased
from ..values.records import LeaseRef
from . import sql
from .notify import wake
from .parameters import leases_as_values
from .statements import Statements


class Releasing(Statements):
    """For whoever runs jobs, and for supervisors after a worker died."""

    def release(self, leases: Iterable[LeaseRef]) -> set[int]:
        """Give jobs back without charging the attempt. Returns the ids whose lease still held."""
        rows = self.rows(sql.RELEASE, leases_as_values(leases))
        return self._released(rows)

    def release_orphans(self, worker_id: str, *, known: Iterable[int]) -> set[int]:
        """Give back what a worker holds beyond the jobs `known`: what it had not begun, or never heard of."""
        rows = self.rows(sql.RELEASE_ORPHANS, {"worker_id": worker_id, "known": list(known)})
        return self._released(rows)

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

    def _released(self, rows: list[tuple[int, str]]) -> set[int]:
        """Wake the workers of the queues that these jobs are in again; their ids."""
        wake(self.alias, (queue_name for _, queue_name in rows))
        ids = [id for id, _ in rows]
        if ids:
            self.send(JobsReleased(self.alias, ids))
        return set(ids)
