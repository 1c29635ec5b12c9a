"""In which order jobs are listed: for each status the one in which an index keeps them.

Invariant: the first page of every list is the front of an index; nothing is sorted, whatever the table's size. What no
index can find (a task, an argument) is looked for among `LOOK` jobs of a list at a time, and the page says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from django.db import models
from django.db.models import F, Func, Q, QuerySet, SmallIntegerField, TextField, Value
from django.db.models.expressions import OrderBy
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..models import Job, Status
from ..models.querysets import JobQuerySet
from . import counts
from .counts import Count
from .states import status_of

Key: TypeAlias = "F | Func[Any]"

LOOK = 50_000
"""How many jobs of a list are looked at for what no index can find: for PostgreSQL some 20 ms, at worst 60."""

MOST_LOOKS = 20
"""How many times as far one can look: beyond a million jobs finding the place to begin takes too long."""

EVERYTHING = Q()

RETRIES = models.Count("attempts", filter=Q(attempts__gt=0))

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
    Status.BLOCKED: Order((F("id"),), False, _("oldest first")),
    Status.QUEUED: Order((F("queue_name"), MINUS_PRIORITY, F("run_after")), False, _("by queue, next claimed first")),
    Status.RUNNING: Order((F("locked_at"),), False, _("longest first")),
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
    def covering(cls, state: str | None, queue_name: str | None) -> "Indexed":
        """The smallest indexed set that holds the jobs in `state` and `queue_name` (`None`: in any)."""
        status = None if state is None else status_of(state)
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

    def count(self, condition: Q = EVERYTHING) -> Count:
        """How many of these there are; the condition is one on the first column of the index."""
        return Count.of(self._by_keys().filter(condition))

    def edge(self, looks: int = 1) -> tuple[Any, ...] | None:
        """The keys of the last of so many times `LOOK` jobs; `None` where there are not more than that."""
        last, after = LOOK * looks - 1, LOOK * looks
        found = list(self._by_keys().values_list(*self.order.keys)[last : after + 1])
        return found[0] if len(found) == 2 else None

    def _by_keys(self) -> JobQuerySet:
        """In order but for the id, so that most indexes answer without the table."""
        return self.jobs().order_by(*self.order.by()[: len(self.order.keys)])


@dataclass(frozen=True)
class Look:
    """A part of an indexed list, `LOOK` jobs long, that is looked at for what no index can find."""

    indexed: Indexed
    number: int
    """1 is the front of the list."""
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None
    """The keys of the jobs after which it begins and ends; `None` where the list itself does."""

    @classmethod
    def at(cls, indexed: Indexed, number: int) -> "Look":
        """The part of this number; the front where the list is too short for it."""
        start = indexed.edge(number - 1) if 1 < number <= MOST_LOOKS else None
        number = number if start else 1
        return cls(indexed, number, start, indexed.edge(number))

    @property
    def is_whole(self) -> bool:
        """Whether all of the list is looked at."""
        return self.start is None and self.end is None

    @property
    def has_next(self) -> bool:
        """Whether there is another part to look at."""
        return self.end is not None and self.number < MOST_LOOKS

    def among(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Those of the jobs that are in this part."""
        if self.start is not None:
            jobs = jobs.exclude(self.indexed.order.up_to(self.start))
        return jobs if self.end is None else jobs.filter(self.indexed.order.up_to(self.end))


@dataclass(frozen=True)
class Scheduled:
    """How many of the scheduled jobs that are due next wait for their first attempt, and how many are retrying.

    No index tells them apart. Of a million jobs those that are due next are looked at, as many as a count counts:
    retries are due soon, or have crowded out everything else.
    """

    first: Count
    retrying: Count

    @classmethod
    def now(cls) -> "Scheduled":
        """Count both in one look."""
        looked_at = Indexed(Status.SCHEDULED).jobs().values("attempts")[: counts.CAP + 1]
        found = looked_at.aggregate(jobs=models.Count("attempts"), retrying=RETRIES)
        is_least = found["jobs"] > counts.CAP
        return cls(Count(found["jobs"] - found["retrying"], is_least), Count(found["retrying"], is_least))

    @property
    def is_flooded(self) -> bool:
        """Whether retries are so many that the others are hard to find among them, and not the other way round."""
        return self.retrying.is_capped and self.retrying.found > self.first.found
