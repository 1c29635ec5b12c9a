"""`run_inline`: jobs run where they are deferred, within a block.

Invariant: after the block, the sink that sees jobs being deferred is gone, and so is the hook on the connection.
"""

import threading
from typing import Any, Unpack

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe

from ..conf import chosen_or_all
from ..events.events import Event, JobsDeferred
from ..events.sinks import SINKS, Alive
from ..models import Job
from .run import RunJobsOptions, run_jobs


class InlineJobs(list[Job]):
    """The jobs that have run in the block, as they were after they ran. Also the sink that sees jobs being deferred."""

    def __init__(self, options: RunJobsOptions) -> None:
        super().__init__()
        self._options = options
        self._aliases = chosen_or_all(options.get("database"))
        self._waits = False
        """Whether a job waits for the end of the transaction that deferred it."""
        self._here = threading.local()
        self._errors: list[Exception] = []

    @async_unsafe("run_inline() sends queries: in an async test, write `async with run_inline()`.")
    def __enter__(self) -> "InlineJobs":
        self._here.depths = {alias: len(connections[alias].atomic_blocks) for alias in self._aliases}
        self._replaced = {}
        for connection in map(connections.__getitem__, self._aliases):
            self._replaced[connection] = vars(connection).get("savepoint_commit")
            vars(connection)["savepoint_commit"] = self._run_after(connection, connection.savepoint_commit)
        SINKS.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Stop, and run the jobs that still wait. Raise the first error of `raise_errors`, unless the block raised."""
        try:
            if error is None and self._waits:
                self._run()
        finally:
            SINKS[:] = [sink for sink in SINKS if sink is not self]
            for connection, replaced in self._replaced.items():
                del vars(connection)["savepoint_commit"]
                if replaced is not None:
                    vars(connection)["savepoint_commit"] = replaced
        if error is None and self._errors:
            raise self._errors[0]

    async def __aenter__(self) -> "InlineJobs":
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, *error: Any) -> None:
        await sync_to_async(self.__exit__)(*error)

    def wants(self, kind: type[Event]) -> bool:
        """See `Sink.wants`."""
        return kind is JobsDeferred

    def handle(self, event: Event, alive: Alive) -> None:
        """Run the job that was just deferred, now or when its transaction is over."""
        if not isinstance(event, JobsDeferred) or event.database not in self._aliases:
            return
        if self._is_over(connections[event.database]):
            self._run()
        elif self._depth(event.database) == 0:
            transaction.on_commit(self._run, using=event.database)
        else:
            self._waits = True  # in a TestCase, savepoints end, and no transaction does

    def _depth(self, alias: str) -> int:
        """How many transactions of this thread were open when the block began: these do not count."""
        depths: dict[str, int] = getattr(self._here, "depths", {})
        return depths.get(alias, 0)

    def _is_over(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether each transaction that counts has ended."""
        return len(connection.atomic_blocks) <= self._depth(connection.alias)

    def _run_after(self, connection: BaseDatabaseWrapper, savepoint_commit: Any) -> Any:
        """Django calls the given method when an atomic block within the test's transaction has ended."""

        def savepoint_commit_and_run(sid: str) -> None:
            savepoint_commit(sid)
            if self._waits and self._is_over(connection):
                self._run()

        return savepoint_commit_and_run

    def _run(self) -> None:
        """Run jobs until none is left. If a job defers another job, the other job runs after it, not within it."""
        if getattr(self._here, "runs", False):
            return
        self._here.runs, self._waits = True, False
        try:
            self.extend(run_jobs(**self._options))
        except Exception as error:  # raised at the end of the block: `.defer()` raises no error of a task
            self._errors.append(error)
        finally:
            self._here.runs = False


def run_inline(**options: Unpack[RunJobsOptions]) -> InlineJobs:
    """Make a context manager that runs jobs where they are deferred. The options are those of `run_jobs`.

    A job runs before `.defer()` returns, or, if it is deferred in a transaction, when the transaction ends.
    Transactions that were open when the block began, such as the test's own, do not count. A job whose transaction is
    rolled back is not run. `.defer()` returns the job as it was inserted: the list that `with` gives has the jobs as
    they are after their run.

    With `raise_errors`, the first exception is raised at the end of the block. Jobs that were queued before the block
    run with the first job that is deferred in the block.
    """
    return InlineJobs(options)
