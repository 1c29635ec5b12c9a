"""The verbs that give claimed jobs back."""

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

    def _released(self, rows: list[tuple[int, str]]) -> set[int]:
        """Wake the workers of the queues that these jobs are in again; their ids."""
        wake(self.alias, (queue_name for _, queue_name in rows))
        ids = [id for id, _ in rows]
        if ids:
            self.send(JobsReleased(self.alias, ids))
        return set(ids)
