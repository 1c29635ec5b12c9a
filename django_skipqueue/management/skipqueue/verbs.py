"""The verbs that change many jobs from the command line. Each is a subcommand: `change_jobs.py`."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from django.db.models import Q

from ...models import UNFINISHED, WAITING, Status
from ...models.expressions import HALTS
from ...operators.deleting import delete_jobs
from ...operators.job_states import RETRYING
from ...store import Store

WAITING_STATES = (RETRYING, *WAITING)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    by: str
    reason: str
    over: timedelta | None
    """The time that retries are spread over."""
    run_after: datetime | None
    """The new due time of postponed jobs. A fixed one, so that no job is postponed twice."""


Change: TypeAlias = Callable[[Store, Collection[int], Instruction], Collection[int]]


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    help: str
    order: str
    """As an order, and `done` as a participle."""
    done: str
    statuses: Collection[str]
    """The statuses in which a job can be changed."""
    also: Q | None = None
    """The condition on which a job can be changed although its status alone does not allow it."""
    states: tuple[str, ...]
    """Where jobs are looked for, if the options do not say in which status. Empty: the options must say so."""
    change: Change
    """Change the jobs that allow it; returns their ids."""
    exception: str = "that changed meanwhile"
    """Why a job whose status allows the verb may stay as it is."""
    is_spread: bool = False
    """Whether it has the option `--over`."""
    is_delay: bool = False
    """Whether it has the option `--for`."""
    leaves_rows: bool = True
    """Whether the rows remain, with a reason in them."""

    @property
    def fits(self) -> Q:
        by_status = Q(status__in=list(self.statuses))
        return by_status if self.also is None else by_status | self.also


RETRY = Verb(
    name="retry",
    help="Put failed or discarded jobs back into their queues, with a fresh set of attempts",
    order="Retry",
    done="retried",
    statuses=(Status.FAILED, Status.DISCARDED),
    states=(Status.FAILED,),
    change=lambda store, ids, told: store.retry(ids, over=told.over or 0.0, by=told.by, reason=told.reason),
    exception="whose unique key another job holds, or that changed meanwhile",
    is_spread=True,
)

RUN_NOW = Verb(
    name="run-now",
    help="Put scheduled and retrying jobs into their queues now",
    order="Run now",
    done="made due",
    statuses=(Status.SCHEDULED,),
    states=(RETRYING, Status.SCHEDULED),
    change=lambda store, ids, told: store.run_now(ids, by=told.by, reason=told.reason),
)

POSTPONE = Verb(
    name="postpone",
    help="Let waiting jobs wait longer",
    order="Postpone",
    done="postponed",
    statuses=WAITING,
    states=WAITING_STATES,
    change=lambda store, ids, told: store.postpone(ids, told.run_after or timedelta(0), by=told.by, reason=told.reason),
    exception="due later anyway, or changed meanwhile",
    is_delay=True,
)

DISCARD = Verb(
    name="discard",
    help="Finish waiting jobs without running them, and let a halted sequence go on without the job that failed",
    order="Discard",
    done="discarded",
    statuses=WAITING,
    also=HALTS,
    states=WAITING_STATES,
    change=lambda store, ids, told: store.discard(ids, by=told.by, reason=told.reason),
)

CANCEL = Verb(
    name="cancel",
    help="Discard waiting and running jobs; those that workers run are interrupted",
    order="Cancel",
    done="cancelled",
    statuses=UNFINISHED,
    states=(*WAITING_STATES, Status.RUNNING),
    change=lambda store, ids, told: store.cancel(ids, by=told.by, reason=told.reason),
)

DELETE = Verb(
    name="delete",
    help="Delete jobs for good, with their results and errors; running ones are left alone",
    order="Delete",
    done="deleted",
    statuses=[status for status in Status if status != Status.RUNNING],
    states=(),
    change=lambda _store, ids, _told: delete_jobs(ids),
    leaves_rows=False,
)

VERBS = (RETRY, RUN_NOW, POSTPONE, DISCARD, CANCEL, DELETE)
