"""The job states that operators see, and the job lists, which are sorted in the order of an index.

The states are the statuses and *retrying*. In the database, a job that waits for a retry is `scheduled`, just like a
job for tomorrow. But to operators, a retrying job is the first sign of trouble.

The first page of every list is the beginning of an index, so nothing is sorted, however large the table is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.expressions import OrderBy
from django.db.models.lookups import GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..models import FINISHED, Job, Status
from ..models.expressions import CLAIM_ORDER, Row, has_cause
from ..models.managers import JobQuerySet
from ..values.records import Cause
from . import counts
from .counts import Count
from .periods import Period

RETRYING = "retrying"

STATES: Mapping[str, Any] = {
    Status.SCHEDULED.value: Status.SCHEDULED.label,
    RETRYING: _("retrying"),
    **{status.value: status.label for status in Status if status != Status.SCHEDULED},
}
"""The label of each state, in the order of the tabs."""


def state_of(job: Job) -> str:
    """Return the job's status, or 'retrying' if it is scheduled after a failed attempt."""
    return RETRYING if job.status == Status.SCHEDULED and job.attempts > 0 else str(job.status)


def status_of(state: str) -> str:
    """Return the status of jobs in this state; for 'retrying' it is 'scheduled'."""
    return Status.SCHEDULED.value if state == RETRYING else state


def is_in(state: str) -> Q:
    """Return the condition that a job is in this state. A snoozed job has no counted attempt."""
    condition = Q(status=status_of(state))
    if state == RETRYING:
        condition &= Q(attempts__gt=0)
    elif state == Status.SCHEDULED:
        condition &= Q(attempts=0)
    return condition


@dataclass(frozen=True)
class ScheduledCounts:
    """How many scheduled jobs wait for their first attempt, and how many for a retry.

    No index separates these two kinds. So only the jobs that are due next are counted, at most
    `counts.MOST_JOBS_COUNTED`. Most retries are among them, because they are due soon.
    """

    first: Count
    retrying: Count

    @classmethod
    def now(cls) -> "ScheduledCounts":
        due_next = Indexed(Status.SCHEDULED).jobs().values("attempts")[: counts.MOST_JOBS_COUNTED + 1]
        retrying = models.Count("attempts", filter=Q(attempts__gt=0))
        numbers = due_next.aggregate(jobs=models.Count("attempts"), retrying=retrying)
        is_lower_bound = numbers["jobs"] > counts.MOST_JOBS_COUNTED
        return cls(
            Count(numbers["jobs"] - numbers["retrying"], is_lower_bound), Count(numbers["retrying"], is_lower_bound)
        )

    @property
    def are_mostly_retries(self) -> bool:
        """Whether there are too many retries to count, and more retries than other scheduled jobs."""
        return self.retrying.is_capped and self.retrying.found > self.first.found


EVERYTHING = Q()
"""A condition that every job meets."""

ALWAYS = Period()
"""A period without a start and an end."""

FEW_IDS = 50_000
"""Queued or scheduled jobs of a period are searched by id only if the period has at most this many ids."""


def time_column(state: str | None) -> str:
    if state in FINISHED:
        return "finished_at"
    return "locked_at" if state == Status.RUNNING else "enqueued_at"


@dataclass(frozen=True)
class Order:
    """How a list is sorted: by these columns of an index, then by id."""

    keys: "tuple[F | Func[Any], ...]"
    descending: bool
    title: str | Promise

    def by(self) -> list[OrderBy]:
        return [key.desc() if self.descending else key.asc() for key in (*self.keys, F("id"))]

    def up_to(self, edge: tuple[Any, ...]) -> GreaterThanOrEqual | LessThanOrEqual:
        """Return the condition that a job's keys equal `edge`, or come before `edge` in the list."""
        comparison = GreaterThanOrEqual if self.descending else LessThanOrEqual
        return comparison(Row(*self.keys), Row(*(Value(value) for value in edge)))

    def after(self, edge: tuple[Any, ...]) -> GreaterThan | LessThan:
        """Return the condition that a job's keys come after `edge` in the list."""
        comparison = LessThan if self.descending else GreaterThan
        return comparison(Row(*self.keys), Row(*(Value(value) for value in edge)))


OLDEST_FIRST = Order((F("id"),), descending=False, title=_("oldest first"))
NEWEST = Order((F("id"),), descending=True, title=_("newest first"))
BY_STATUS = Order((F("status"), F("id")), descending=True, title=_("by status, newest first"))
LAST_FINISHED = Order((F("finished_at"),), descending=True, title=_("last finished first"))

ORDERS: Mapping[str, Order] = {
    Status.SCHEDULED: Order((F("run_after"),), descending=False, title=_("next due first")),
    Status.QUEUED: Order(CLAIM_ORDER[:-1], descending=False, title=_("by queue, next claimed first")),
    Status.RUNNING: Order((F("locked_at"),), descending=False, title=_("longest first")),
    Status.COMPLETED: LAST_FINISHED,
    Status.FAILED: LAST_FINISHED,
    Status.DISCARDED: LAST_FINISHED,
}
"""The order of the list of each status. The lists of other statuses have `OLDEST_FIRST`."""


class Group(NamedTuple):
    """The jobs that have this id in an indexed column, such as `Group("batch_id", 4)`."""

    column: str
    id: int

    @property
    def condition(self) -> Q:
        return Q(**{self.column: self.id})


class Key(NamedTuple):
    """The jobs that have this text in a column. An index lists the key's waiting jobs in the order of admission."""

    column: str
    text: str
    gate: str
    """The value that the column `gate` has in the jobs that wait for the key."""
    order: Order

    @property
    def condition(self) -> Q:
        return Q(**{self.column: self.text})

    @property
    def waiting(self) -> Q:
        return self.condition & Q(gate=self.gate)


@dataclass(frozen=True)
class Indexed:
    """A set of jobs that one index finds, already sorted.

    The set is one of these: all jobs; the jobs with a status, or with a status in a queue; failed or retrying jobs with
    a cause; the jobs of a group, such as a batch; the blocked jobs that wait for a key; or the jobs with given ids.
    """

    status: str | None = None
    queue_name: str | None = None
    period: Period = ALWAYS
    """When finished jobs finished, when running jobs were claimed, or when waiting jobs were enqueued."""
    cause: Cause | None = None
    """The cause of the jobs' last error; `None` means any or no cause."""
    key: Key | None = None
    """The key that blocked jobs wait for; `None` means any or no key."""
    group: Group | None = None
    """The group of the jobs; `None` means any or no group."""
    ids: tuple[int, ...] | None = None
    """The ids of the jobs; `None` means any id."""

    @classmethod
    def covering(
        cls,
        state: str | None,
        queue_name: str | None = None,
        period: Period = ALWAYS,
        cause: Cause | None = None,
        key: Key | None = None,
        group: Group | None = None,
        ids: tuple[int, ...] | None = None,
    ) -> "Indexed":
        """Return the smallest indexed set that contains all jobs with these properties. `None` means any."""
        status = None if state is None else status_of(state)
        if ids is not None:
            return cls(status, ids=ids)
        if group is not None:
            return cls(status, group=group)
        if cause is not None and state in (Status.FAILED, RETRYING):
            return cls(status, cause=cause)
        if key is not None and status == Status.BLOCKED:
            return cls(status, key=key)
        if period and status in (Status.QUEUED, Status.SCHEDULED):
            first, end = period.ids
            period = period if end - first <= FEW_IDS else ALWAYS
        return cls(status, queue_name if status in (Status.QUEUED, Status.FAILED) else None, period)

    @property
    def time(self) -> str:
        """The column that the period is about."""
        return time_column(self.status)

    @property
    def is_by_id(self) -> bool:
        """Whether the primary key finds the jobs of the period."""
        return bool(self.period) and self.time == "enqueued_at"

    @property
    def is_of_few(self) -> bool:
        """Whether the set is small, so that a further condition may filter its jobs one by one."""
        has_few_ids = self.ids is not None or (self.is_by_id and self.status in (Status.QUEUED, Status.SCHEDULED))
        return has_few_ids or self.group is not None or self.cause is not None or self.key is not None

    @property
    def order(self) -> Order:
        if self.group is not None:
            return BY_STATUS if self.status is None else NEWEST
        if self.status is None or self.cause is not None or self.ids is not None:
            return NEWEST
        if self.key is not None:
            return self.key.order
        return OLDEST_FIRST if self.is_by_id else ORDERS.get(self.status, OLDEST_FIRST)

    def jobs(self) -> JobQuerySet:
        jobs: JobQuerySet = Job.objects.all()
        if self.status is not None:
            jobs = jobs.filter(status=self.status)
        if self.ids is not None:
            jobs = jobs.filter(pk__in=self.ids)
        if self.group is not None:
            jobs = jobs.filter(self.group.condition)
        if self.queue_name is not None:
            jobs = jobs.filter(queue_name=self.queue_name)
        if self.period:
            jobs = jobs.filter(self.period.of(self.time))
        if self.is_by_id:
            jobs = jobs.filter(self.period.has_ids)
        if self.cause is not None:
            jobs = jobs.filter(has_cause(self.cause))
            if self.status == Status.SCHEDULED:
                jobs = jobs.filter(is_in(RETRYING))
        if self.key is not None:
            jobs = jobs.filter(self.key.waiting)
        return jobs.order_by(*self.order.by())

    def count(self, condition: Q = EVERYTHING) -> Count:
        """Count the jobs. `condition` must be on the first column of the index."""
        return Count.of(self._by_keys().filter(condition))

    def edge(self, length: int, *, after: tuple[Any, ...] | None = None) -> tuple[Any, ...] | None:
        """Return the keys of the job at position `length`, from the start or `after`; `None` if it is the last job."""
        jobs = self._by_keys() if after is None else self._by_keys().filter(self.order.after(after))
        next_two = list(jobs.values_list(*self.order.keys)[length - 1 : length + 1])
        return next_two[0] if len(next_two) == 2 else None  # only one job left: it is the last job of the list

    def _by_keys(self) -> JobQuerySet:
        """Sort the jobs by the index's columns, without the id, so that most indexes are read without the table."""
        return self.jobs().order_by(*self.order.by()[: len(self.order.keys)])
