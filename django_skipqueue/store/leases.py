"""The methods that read which worker holds which jobs."""

from collections.abc import Iterable, Sequence

from ..values.lost_leases import LostLease
from ..values.records import LeaseRef
from . import sql
from .parameters import leases_as_values
from .statements import Statements


class Leases(Statements):
    """Used by workers, by loops written by hand, and by supervisors after a worker died."""

    def still_holding(self, worker_ids: Sequence[str]) -> set[str]:
        """The ids of the workers among these that still hold jobs."""
        return {id for (id,) in self.rows(sql.STILL_HOLDING, {"worker_ids": list(worker_ids)})}

    def lost_leases(self, leases: Iterable[LeaseRef]) -> dict[LeaseRef, LostLease]:
        """The leases among these that are no longer valid, and how each has ended."""
        rows = self.rows(sql.LOST_LEASES, leases_as_values(leases))
        return {(id, lease): LostLease(*columns) for id, lease, *columns in rows}

    def locked(self, leases: Iterable[LeaseRef]) -> set[int]:
        """The ids of the jobs whose rows another transaction has locked at this moment. Does not wait for locks."""
        return {id for (id,) in self.rows(sql.LOCKED_ROWS, leases_as_values(leases))}

    def heartbeat_job(self, ref: LeaseRef) -> bool:
        """Write the heartbeat of a job that was claimed by hand. Returns whether its lease is still valid."""
        id, lease = ref
        return bool(self.rows(sql.HEARTBEAT_JOB, {"id": id, "lease": lease}))
