"""`run_jobs` runs deferred jobs one after another, in the thread of its caller.

In a worker, no transaction is open when an attempt begins. But a `TestCase` keeps one transaction open and never
commits it, and a failed statement makes all later statements of a transaction fail. So a savepoint is made before each
attempt, and rolled back if the attempt breaks the transaction. The commit hooks that the attempt registers are called
once, as if the transaction had been committed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, Self, TypedDict, Unpack

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max
from django.db.models.functions import Coalesce, Now
from django.utils.asyncio import async_unsafe
from psycopg.pq import TransactionStatus

from ..conf import chosen_or_all
from ..events.sinks import SignalSink
from ..exceptions import CrashedByTest, JobInterrupted, UnknownTask
from ..jobs.task import Task
from ..models import Job, Queue
from ..queue.gates import sweep_gates
from ..queue.notify import Notification
from ..queue.store import Store
from ..values.outcomes import Outcome
from ..values.part import installed_parts
from ..values.records import Attempt, ClaimedJob
from ..worker.attempts.executor import Executor
from ..worker.attempts.running_attempt import RunningAttempt
from ..worker.by_hand import run_attempt
from ..worker.notes import capturing
from ..worker.outcomes import EVENTS, ended_otherwise

TEST_WORKER_ID = "test"
"""The name of the worker in the rows of the jobs."""

Act = Callable[[datetime], bool]
"""Does something that is due at the given time. Returns whether it was done."""

signals = SignalSink()


@async_unsafe("run_jobs() sends queries: in an async test, await arun_jobs().")
def run_jobs(
    *,
    queue_names: Sequence[str] | None = None,
    include_scheduled: bool = False,
    until: datetime | timedelta | None = None,
    schedules: bool | Sequence[Any] = False,
    raise_errors: bool = False,
    limit: int = 1_000,
    database: str | None = None,
) -> list[Job]:
    """Run the queued jobs, and the jobs that these defer, until none is left. Returns the jobs as they are afterwards.

    Due jobs run in the order in which a worker claims them. A retry runs once it is due.

    queue_names: run only the jobs of these queues, in this order; default: all queues.
    include_scheduled: when no other job is left, run the scheduled jobs and the retries too, in the order of their due
    times and without waiting. Then run the jobs that wait for a rate.
    until: run the scheduled jobs that are due until this moment, and the jobs that a rate admits until then. A
    timedelta counts from now. If such a job schedules another job, the delay counts from the first job's due time.
    schedules: needs `until`. With `True`, all schedules fire at their times until this moment, and with a list of tasks
    only the schedules of these tasks. Includes the schedules of `@periodic` and of `SKIPQUEUE["PERIODIC"]`, but not
    schedules made in the admin.
    raise_errors: raise the first exception that a task raises, after its outcome is written. By default, an exception
    only sets the job's outcome, as in a worker. `Retry`, `Snooze` and `Discard` are never raised.
    limit: raise RuntimeError after this many attempts, so that jobs that defer each other do not run for ever.
    database: the alias of the queue's database; default: all databases that hold queues, one after another, until none
    has a job left. The limit counts for each database.

    Raises ValueError for `schedules` without `until`, and for a task that has no schedule.
    """
    if schedules and until is None:
        raise ValueError("schedules needs until: without an end, schedules fire for ever.")
    runs = []
    planners = [part.planned for part in installed_parts() if schedules and part.planned]
    all_planned = [planned for plan in planners for planned in plan(schedules)]
    for alias in chosen_or_all(database):
        planned_here = [planned for planned in all_planned if planned.database == alias]
        runs_early = include_scheduled or until is not None
        early_runs = EarlyRuns(alias, queue_names, until=until, all_planned=planned_here) if runs_early else None
        runs.append(Run(alias, queue_names, early_runs=early_runs, raise_errors=raise_errors, limit=limit))
    with capturing():
        while sum(run.drain() for run in runs) and len(runs) > 1:  # a job may defer a job into another database
            pass
    return [job for run in runs for job in run.jobs()]


class RunJobsOptions(TypedDict, total=False):
    """The options of `run_jobs`, whose docstring explains them."""

    queue_names: Sequence[str] | None
    include_scheduled: bool
    until: datetime | timedelta | None
    schedules: bool | Sequence[Any]
    raise_errors: bool
    limit: int
    database: str | None


async def arun_jobs(**options: Unpack[RunJobsOptions]) -> list[Job]:
    """`run_jobs` for async tests, with the same options."""
    return await sync_to_async(run_jobs)(**options)


class Planned(Protocol):
    """Something that happens at planned times in one database, such as a schedule."""

    @property
    def database(self) -> str:
        """The alias of the database."""

    def first(self, now: datetime) -> datetime | None:
        """The first planned time after this moment, if any."""

    def fire(self, store: Store, due: datetime) -> datetime | None:
        """Do what is planned for this time. Returns the next planned time, if any."""


class Clock(Protocol):
    """The clock by which a gate of a part admits jobs in one database, such as the clock of the rate limits."""

    def due(self) -> Sequence[datetime]:
        """The real times at which the gate may admit a job."""

    def put_forward(self, passed: timedelta) -> None:
        """Put the clock forward, as if this much time had passed."""

    def put_to_the_end(self) -> None:
        """Put the clock so far forward that the gate admits every job."""


class EarlyRuns:
    """Makes scheduled jobs due before their time, as operators can, so that the jobs pass the gates as in production.

    A job runs as if its due time had come, so its clock is ahead of the real time. If the job snoozes, or schedules
    another job, PostgreSQL computes the new due time from the real time, and this class adds how far the job's clock is
    ahead. Otherwise, with `until` an hour from now, a job that snoozes for ten minutes each time would run for ever.
    """

    def __init__(
        self,
        alias: str,
        queue_names: Sequence[str] | None,
        *,
        until: datetime | timedelta | None = None,
        all_planned: Sequence[Planned] = (),
    ) -> None:
        self._alias = alias
        self._store = Store(alias)
        self._clocks: list[Clock] = [part.clock(alias) for part in installed_parts() if part.clock]
        self._jobs = Job.objects.using(alias).scheduled().order_by("run_after", "pk")
        if queue_names is not None:
            self._jobs = self._jobs.filter(queue_name__in=queue_names)
        now = _now(alias)
        self._until = now + until if isinstance(until, timedelta) else until
        self._planned = [(due, planned) for planned in all_planned if (due := planned.first(now))]
        self._time_ahead = timedelta(0)
        """How far the clock of the jobs is ahead of the real time."""
        self._delays: dict[int, timedelta] = {}
        """By job id: how much later the job is due than its row says. It is `_time_ahead` when the job was
        scheduled."""

    def go_on(self) -> bool:
        """Put the clock forward to the time at which the next job, schedule or rate is due. Returns whether one was."""
        due_acts = [*self._jobs_due(), *self._schedules_due(), *self._gates_due()]
        for due, act in sorted(due_acts, key=itemgetter(0)):
            if self._until is not None and due > self._until:
                break
            if act(due):
                return True
        if self._until is not None:
            return False
        for clock in self._clocks:
            clock.put_to_the_end()
        return self._admit_jobs()

    def _jobs_due(self) -> Iterator[tuple[datetime, Act]]:
        """For each scheduled job, when it is due, and what to do then."""
        for id, run_after in self._jobs.values_list("pk", "run_after"):
            yield run_after + self._delays.setdefault(id, self._time_ahead), partial(self._run_now, id)

    def _run_now(self, id: int, due: datetime) -> bool:
        if not self._jobs.get(pk=id).run_now(by="run_jobs"):
            return False  # another session has locked the job
        del self._delays[id]
        self._put_clocks_forward(due)
        return True

    def _schedules_due(self) -> Iterator[tuple[datetime, Act]]:
        for due, planned in self._planned:
            yield due, partial(self._fire, planned)

    def _fire(self, fired: Planned, due: datetime) -> bool:
        self._put_clocks_forward(due)
        next_time = fired.fire(self._store, due)
        other_planned = [(next_due, planned) for next_due, planned in self._planned if planned is not fired]
        self._planned = other_planned + ([(next_time, fired)] if next_time else [])
        return True

    def _gates_due(self) -> Iterator[tuple[datetime, Act]]:
        if self._until is not None:
            for clock in self._clocks:
                for due in clock.due():
                    yield due + self._time_ahead, self._admit_at

    def _admit_at(self, due: datetime) -> bool:
        self._put_clocks_forward(due)
        return self._admit_jobs()

    def _admit_jobs(self) -> bool:
        return sweep_gates(self._store) or self._store.admit().has_changed_jobs

    def _put_clocks_forward(self, due: datetime) -> None:
        """Put the clock of the jobs, and the clocks of the gates, forward to this time."""
        passed = max(timedelta(0), due - _now(self._alias) - self._time_ahead)
        for clock in self._clocks:
            clock.put_forward(passed)
        self._time_ahead += passed


class Run:
    """Runs the jobs of one database, and remembers their ids."""

    def __init__(
        self,
        alias: str,
        queue_names: Sequence[str] | None,
        *,
        early_runs: EarlyRuns | None,
        raise_errors: bool,
        limit: int,
    ) -> None:
        self._alias = alias
        self._store = Store(alias)
        self._queue_names = queue_names
        self._early_runs = early_runs
        self._raise_errors = raise_errors
        self._limit = limit
        self._executor = CommittingExecutor(worker=TEST_WORKER_ID, database=alias)
        self._ran: list[int] = []

    def drain(self) -> bool:
        """Run jobs until none is left. Returns whether any job ran. Raises as `run_jobs` does."""
        count_before = len(self._ran)
        while job := self._next_job():
            if len(self._ran) == self._limit:
                self._store.release([job.ref])
                raise RuntimeError(f"{self._limit} attempts were made and there are still jobs to run.")
            self._ran.append(job.id)
            self._run(job)
        return len(self._ran) > count_before

    def jobs(self) -> list[Job]:
        """The jobs that ran, as they are now, in the order of their first attempts. Deleted jobs are left out."""
        jobs_by_id = Job.objects.using(self._alias).in_bulk(self._ran)
        return [jobs_by_id[id] for id in dict.fromkeys(self._ran) if id in jobs_by_id]

    def _next_job(self) -> ClaimedJob | None:
        """Claim one job. If there is none, open the gates, let the parts make jobs, or make scheduled jobs due."""
        while True:
            queues = self._store.queues_with_jobs() if self._queue_names is None else self._queue_names
            for job in self._store.claim(queue_names=queues, limit=1, worker_id=TEST_WORKER_ID):
                return job
            if self._store.admit().has_changed_jobs or sweep_gates(self._store):
                continue
            if any(part.before_drained(self._store) for part in installed_parts() if part.before_drained):
                continue
            if not (self._early_runs and self._early_runs.go_on()):
                return None

    def _run(self, job: ClaimedJob) -> None:
        with OpenTransactions() as transactions:
            self._executor.transactions = transactions
            attempt = run_attempt(self._executor, job)
            transactions.run_hooks()
        if isinstance(attempt.outcome.exception, CrashedByTest):
            self._store.recover(worker_ids=[TEST_WORKER_ID], job_ids=[job.id], reason=str(attempt.outcome.exception))
            return
        if not attempt.is_written and not self._store.settle([attempt.settlement]):
            event_class, attempt = ended_otherwise(attempt, self._store.lost_leases([job.ref]).get(job.ref))
        else:
            event_class = EVENTS[attempt.outcome.status]
        if signals.wants(event_class):
            signals.handle(event_class([attempt]), alive=lambda: None)
        self._raise(attempt)

    def _raise(self, attempt: Attempt) -> None:
        error = attempt.outcome.exception
        if attempt.outcome.is_unknown and self._raise_errors:
            raise UnknownTask((attempt.outcome.last_error or "").removeprefix("UnknownTask: "))
        if error is not None and (self._raise_errors or _ends_the_test(error)):
            raise error


def _ends_the_test(error: BaseException) -> bool:
    """Whether the test itself must end, because of Ctrl-C, or a timeout, skip or failure of the test runner."""
    return not isinstance(error, Exception | SystemExit | GeneratorExit | JobInterrupted)


def _now(alias: str) -> datetime:
    """The database's time, read by an aggregate, which returns a row even if the table is empty."""
    moment: datetime = Queue.objects.using(alias).aggregate(now=Coalesce(Max(Now()), Now()))["now"]
    return moment


logger = logging.getLogger("django_skipqueue.testing")


class OpenTransaction:
    """A transaction that was open on a connection before the attempt began."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._hook_count = len(connection.run_on_commit)
        self._savepoint = str(connection.savepoint())

    def run_hooks(self) -> None:
        """Call the commit hooks that the attempt registered, and forget them. Do not call hooks that wake workers."""
        hooks: list[Any] = self._connection.run_on_commit  # a list of tuples with three items
        while len(hooks) > self._hook_count and not self._is_broken():
            _, hook, robust = hooks.pop(self._hook_count)
            if isinstance(hook, Notification):
                continue
            try:
                hook()
            except Exception as error:
                if not robust:
                    raise
                logger.error("A commit hook raised: %r", error, exc_info=error)

    def end(self) -> None:
        """End the savepoint. If the attempt has broken the transaction, also undo what the attempt has written."""
        if self._connection.closed_in_transaction:  # the next statement will raise Django's error about this
            return
        if self._is_broken():
            del self._connection.run_on_commit[self._hook_count :]
            self._connection.needs_rollback = False
            self._connection.savepoint_rollback(self._savepoint)
        self._connection.savepoint_commit(self._savepoint)

    def _is_broken(self) -> bool:
        pgconn = getattr(self._connection.connection, "pgconn", None)
        failed = pgconn is not None and pgconn.transaction_status == TransactionStatus.INERROR
        return self._connection.needs_rollback or failed


class OpenTransactions:
    """Keeps the transactions that are open in this thread usable after an attempt in the `with` block.

    At the end of the block, undoes what the attempt has written in a transaction that it has broken.
    """

    def __enter__(self) -> Self:
        open_connections = connections.all(initialized_only=True)
        self._transactions = [
            OpenTransaction(connection) for connection in open_connections if connection.in_atomic_block
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for transaction in self._transactions:
            transaction.end()

    def run_hooks(self) -> None:
        """Call the commit hooks that the attempt has registered."""
        for transaction in self._transactions:
            transaction.run_hooks()


class CommittingExecutor(Executor):
    """Calls the commit hooks of a `def` task within its attempt, so that the attempt fails if a hook raises.

    A worker calls the hooks within the attempt as well. The commit hooks of an `async def` task belong to another
    thread, and are called later.
    """

    transactions = OpenTransactions()

    def _run_here(self, task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        try:
            return super()._run_here(task, running)
        finally:
            self.transactions.run_hooks()
