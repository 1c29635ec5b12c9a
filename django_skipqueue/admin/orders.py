"""In which order jobs are listed: for each status the one in which an index keeps them.

Invariant: the first page of every list is the front of an index; nothing is sorted, whatever the table's size. What no
index can find (a task, an argument) is looked for among the first `LOOK` jobs of a list, and the page says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from django.db.models import F, Func, SmallIntegerField, TextField, Value
from django.db.models.expressions import OrderBy
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..managers import JobQuerySet
from ..models import Job, Status
from .counts import Count

Key: TypeAlias = "F | Func[Any]"

LOOK = 50_000
"""How many jobs of a list are looked at for what no index can find: for PostgreSQL some 20 ms, at worst 60."""

MINUS_PRIORITY = Func(F("priority"), template="(-%(expressions)s)", output_field=SmallIntegerField())
"""As the claim index spells it; Django's own `-F("priority")` is another expression to PostgreSQL."""


class Row(Func):
    """Several values as one, so that a single comparison can say where in an index a list ends."""

    template = "(%(expressions)s)"
    output_field = TextField()  # nobody reads it: rows are only compared


@dataclass(frozen=True)
class Order:
    """The columns of an index, as far as they order a list; the id decides between equals."""

    keys: tuple[Key, ...]
    descending: bool
    title: str | Promise

    def by(self) -> list[OrderBy]:
        """What `QuerySet.order_by` takes."""
        return [key.desc() if self.descending else key.asc() for key in (*self.keys, F("id"))]

    def up_to(self, edge: tuple[Any, ...]) -> GreaterThanOrEqual | LessThanOrEqual:
        """The condition that a job does not come after one with the keys `edge`."""
        comparison = GreaterThanOrEqual if self.descending else LessThanOrEqual
        return comparison(Row(*self.keys), Row(*(Value(value) for value in edge)))


NEWEST = Order((F("id"),), True, _("newest first"))
FINISHED = Order((F("finished_at"),), True, _("last finished first"))

ORDERS: Mapping[str, Order] = {
    Status.SCHEDULED: Order((F("run_after"),), False, _("next due first")),
    Status.QUEUED: Order((F("queue_name"), MINUS_PRIORITY, F("run_after")), False, _("by queue, next claimed first")),
    Status.RUNNING: Order((F("locked_at"),), True, _("last claimed first")),
    Status.COMPLETED: FINISHED,
    Status.FAILED: FINISHED,
    Status.DISCARDED: FINISHED,
}


@dataclass(frozen=True)
class Indexed:
    """The jobs that one index finds, and keeps in order: all, those of a status, those of a status in one queue."""

    status: str | None = None
    queue_name: str | None = None

    @classmethod
    def covering(cls, status: str | None, queue_name: str | None) -> "Indexed":
        """The smallest indexed set that holds the jobs of `status` and `queue_name` (`None`: of any)."""
        has_queue = status in (Status.QUEUED, Status.FAILED)
        return cls(status, queue_name if has_queue else None)

    @property
    def order(self) -> Order:
        """In which the index keeps them."""
        return NEWEST if self.status is None else ORDERS[self.status]

    def jobs(self) -> JobQuerySet:
        """These jobs, in order."""
        jobs: JobQuerySet = Job.objects.all()
        if self.status is not None:
            jobs = jobs.filter(status=self.status)
        if self.queue_name is not None:
            jobs = jobs.filter(queue_name=self.queue_name)
        return jobs.order_by(*self.order.by())

    def count(self) -> Count:
        """How many these are."""
        return Count.of(self._by_keys())

    def edge(self) -> tuple[Any, ...] | None:
        """The keys of the last of the first `LOOK` jobs; `None` where there are not more than that."""
        return self._by_keys().values_list(*self.order.keys)[LOOK : LOOK + 1].first()

    def _by_keys(self) -> JobQuerySet:
        """In order but for the id, so that most indexes answer without the table."""
        return self.jobs().order_by(*self.order.by()[: len(self.order.keys)])
