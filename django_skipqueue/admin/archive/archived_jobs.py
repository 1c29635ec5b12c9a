"""The archived jobs that one index finds, and keeps in order.

Invariant: a list of archived jobs is read from the end of an index in each partition, the newest partition first.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...models import ArchivedJob, Status
from ...operators.list_order import LAST_FINISHED, Indexed, Order, between


@dataclass(frozen=True)
class ArchivedJobs(Indexed):
    """All in a range of time, those of a task, or those of a status: failed or discarded."""

    task: str | None = None

    @classmethod
    def of(
        cls, status: str | None, task: str | None, *, first: datetime | None, before: datetime | None
    ) -> "ArchivedJobs":
        """The smallest indexed set that holds the jobs with this status and task (`None`: with any)."""
        has_status = task is None and status in (Status.FAILED, Status.DISCARDED)
        return cls(status=status if has_status else None, task=task, since=first, before=before)

    @property
    def order(self) -> Order:
        return LAST_FINISHED

    def jobs(self) -> Any:
        wanted = {"status": self.status, "task": self.task}
        conditions = {lookup: value for lookup, value in wanted.items() if value is not None}
        time = between("finished_at", self.since, self.before)
        return ArchivedJob.objects.filter(time, **conditions).order_by(*self.order.by())
