"""`run_inline` runs the jobs of a block immediately, in the thread that defers them.

It is a sink of events, so that it sees when a job is deferred, and replaces a method of each connection. At the end of
the block, it removes the sink and restores the method.
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
    """The context manager, which is also a list of the jobs that ran in the block, as they were after they ran."""

    def __init__(self, options: RunJobsOptions) -> None:
        super().__init__()
        self._options = options
        self._aliases = chosen_or_all(options.get("database"))
        self._has_waiting = False
        """Whether a job is not yet run because the transaction that deferred it is still open."""
        self._this_thread = threading.local()
        self._errors: list[Exception] = []

    @async_unsafe("run_inline() sends queries: in an async test, write `async with run_inline()`.")
    def __enter__(self) -> "InlineJobs":
        self._this_thread.depths = {alias: len(connections[alias].atomic_blocks) for alias in self._aliases}
        self._replaced = {}  # by connection: the `savepoint_commit` that somebody has set on it; `None` if nobody has
        for connection in map(connections.__getitem__, self._aliases):
            self._replaced[connection] = vars(connection).get("savepoint_commit")
            vars(connection)["savepoint_commit"] = self._run_after(connection, connection.savepoint_commit)
        SINKS.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Run the jobs that still wait, and stop. Then raise the first error that `raise_errors` asks for, if any."""
        try:
            if error is None and self._has_waiting:
                self._run()
        finally:
            SINKS[:] = [sink for sink in SINKS if sink is not self]
            for connection, original in self._replaced.items():
                del vars(connection)["savepoint_commit"]
                if original is not None:
                    vars(connection)["savepoint_commit"] = original
        if error is None and self._errors:
            raise self._errors[0]

    async def __aenter__(self) -> "InlineJobs":
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, *error: Any) -> None:
        await sync_to_async(self.__exit__)(*error)

    def wants(self, kind: type[Event]) -> bool:
        """Whether to pass events of this class to `handle`. See `Sink.wants`."""
        return kind is JobsDeferred

    def handle(self, event: Event, alive: Alive) -> None:
        """Run the job that was just deferred, either now or when its transaction has ended."""
        if not isinstance(event, JobsDeferred) or event.database not in self._aliases:
            return
        if self._is_over(connections[event.database]):
            self._run()
        elif self._depth(event.database) == 0:
            transaction.on_commit(self._run, using=event.database)
        else:
            self._has_waiting = True  # in a TestCase only savepoints end, and the transaction does not

    def _depth(self, alias: str) -> int:
        """Return how many atomic blocks this thread was in when the block began. No job waits for their end."""
        depths: dict[str, int] = getattr(self._this_thread, "depths", {})
        return depths.get(alias, 0)

    def _is_over(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether all atomic blocks have ended that began within the block of `run_inline`."""
        return len(connection.atomic_blocks) <= self._depth(connection.alias)

    def _run_after(self, connection: BaseDatabaseWrapper, savepoint_commit: Any) -> Any:
        """Make a `savepoint_commit` for the connection, which Django calls at the end of an inner atomic block."""

        def savepoint_commit_and_run(sid: str) -> None:
            savepoint_commit(sid)
            if self._has_waiting and self._is_over(connection):
                self._run()

        return savepoint_commit_and_run

    def _run(self) -> None:
        """Run jobs until none is left. A job that is deferred by another job runs after it, and not within it."""
        if getattr(self._this_thread, "runs", False):
            return
        self._this_thread.runs, self._has_waiting = True, False
        try:
            self.extend(run_jobs(**self._options))
        except Exception as error:  # raised at the end of the block, because `.defer()` never raises a task's error
            self._errors.append(error)
        finally:
            self._this_thread.runs = False


def run_inline(**options: Unpack[RunJobsOptions]) -> InlineJobs:
    """Make a context manager in whose block each deferred job runs at once. The options are those of `run_jobs`.

    A job runs before `.defer()` returns, or, if it is deferred in a transaction, when the transaction ends.
    Transactions that were open when the block began, such as the test's own, do not count. A job whose transaction is
    rolled back is not run. `.defer()` returns the job as it was inserted. The list that `with` gives has the jobs as
    they are after they ran.

    With `raise_errors`, the first exception is raised at the end of the block. Jobs that were queued before the block
    run with the first job that is deferred in the block.
    """
    return InlineJobs(options)
