"""The verbs that let scheduled jobs into their queues."""

from . import sql
from .notify import wake
from .statements import BATCH, Statements


class Admitting(Statements):
    """For supervisors; idempotent, and what others have locked is skipped."""

    def admit(self, *, limit: int = BATCH) -> dict[str, int]:
        """Make scheduled jobs that are due claimable; how many in each queue."""
        admitted = dict(self._rows(sql.ADMIT, {"limit": limit}))
        wake(self.alias, admitted)
        return admitted

    def next_due(self) -> float | None:
        """The seconds until the next scheduled job is due, below 0 if it is overdue; `None` without one."""
        rows = self._rows(sql.NEXT_DUE)
        return rows[0][0] if rows else None
