"""The order in which jobs are listed: for each status that of an index.

Invariant: the first page of every list is the front of an index; nothing is sorted, whatever the table's size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Func, Q, Value
from django.db.models.expressions import OrderBy
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ...models import Job, Status
from ...models.expressions import CLAIM_ORDER, Row
from ...models.querysets import JobQuerySet
from ..ui.counts import Count
from ..ui.job_states import status_of

EVERYTHING = Q()


@dataclass(frozen=True)
class Order:
    """The columns of an index that order a list. Jobs that are equal in them are ordered by id."""

    keys: "tuple[F | Func[Any], ...]"
    descending: bool
    title: str | Promise

    def by(self) -> list[OrderBy]:
        """The arguments of `QuerySet.order_by`."""
        return [key.desc() if self.descending else key.asc() for key in (*self.keys, F("id"))]

    def up_to(self, edge: tuple[Any, ...]) -> GreaterThanOrEqual | LessThanOrEqual:
        """The condition that a job does not come after one with the keys `edge`."""
        comparison = GreaterThanOrEqual if self.descending else LessThanOrEqual
        return comparison(Row(*self.keys), Row(*(Value(value) for value in edge)))


OLDEST = Order((F("id"),), False, _("oldest first"))
NEWEST = Order((F("id"),), True, _("newest first"))
FINISHED = Order((F("finished_at"),), True, _("last finished first"))

ORDERS: Mapping[str, Order] = {
    Status.SCHEDULED: Order((F("run_after"),), False, _("next due first")),
    Status.QUEUED: Order(CLAIM_ORDER[:-1], False, _("by queue, next claimed first")),
    Status.RUNNING: Order((F("locked_at"),), False, _("longest first")),
    Status.COMPLETED: FINISHED,
    Status.FAILED: FINISHED,
    Status.DISCARDED: FINISHED,
}
"""The order of each status; of one that is not here, `OLDEST`."""


@dataclass(frozen=True)
class Indexed:
    """The jobs that one index finds, and keeps in order: all, those of a status, those of a status in one queue."""

    status: str | None = None
    queue_name: str | None = None

    @classmethod
    def covering(cls, state: str | None, queue_name: str | None) -> "Indexed":
        """The smallest indexed set that holds the jobs in `state` and `queue_name` (`None`: in any)."""
        status = None if state is None else status_of(state)
        has_queue = status in (Status.QUEUED, Status.FAILED)
        return cls(status, queue_name if has_queue else None)

    @property
    def order(self) -> Order:
        """The order of the index."""
        return NEWEST if self.status is None else ORDERS.get(self.status, OLDEST)

    def jobs(self) -> JobQuerySet:
        """These jobs, in order."""
        jobs: JobQuerySet = Job.objects.all()
        if self.status is not None:
            jobs = jobs.filter(status=self.status)
        if self.queue_name is not None:
            jobs = jobs.filter(queue_name=self.queue_name)
        return jobs.order_by(*self.order.by())

    def count(self, condition: Q = EVERYTHING) -> Count:
        """How many of these there are; the condition is one on the first column of the index."""
        return Count.of(self._by_keys().filter(condition))

    def edge(self, length: int) -> tuple[Any, ...] | None:
        """The keys of the last of the first `length` jobs; `None` where there are not more than that."""
        found = list(self._by_keys().values_list(*self.order.keys)[length - 1 : length + 1])
        return found[0] if len(found) == 2 else None

    def _by_keys(self) -> JobQuerySet:
        """In the order of the index, without the id, so that most indexes are read without the table."""
        return self.jobs().order_by(*self.order.by()[: len(self.order.keys)])
