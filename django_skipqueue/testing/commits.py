"""Does for one attempt within the transaction of a `TestCase` what autocommit does in a worker.

In a worker no transaction is open when an attempt begins. A `TestCase` has one open, in which nothing is ever committed
and a single failed statement breaks everything after it. Invariant: after an attempt, that transaction can be used, and
the commit hooks of the attempt were called, once.
"""

import logging
from types import TracebackType
from typing import Any, Self

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from ..jobs.task import Task
from ..queue.notify import Notification
from ..values.outcomes import Outcome
from ..worker.attempts.executor import Executor
from ..worker.attempts.running_attempt import RunningAttempt

logger = logging.getLogger("django_skipqueue.testing")


class OpenTransaction:
    """The transaction that one connection has open before an attempt."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._hooks = len(connection.run_on_commit)
        self._savepoint = str(connection.savepoint())

    def run_hooks(self) -> None:
        """Call the commit hooks that were registered since, and forget them; without those that only wake workers."""
        hooks: list[Any] = self._connection.run_on_commit  # of tuples with three items
        while len(hooks) > self._hooks and not self._is_broken():
            _, hook, robust = hooks.pop(self._hooks)
            if isinstance(hook, Notification):
                continue
            try:
                hook()
            except Exception as error:
                if not robust:
                    raise
                logger.error("A commit hook raised: %r", error, exc_info=error)

    def end(self) -> None:
        """Let the transaction go on. If the attempt has broken it, undo what the attempt has written."""
        if self._connection.closed_in_transaction:  # the next statement raises Django's error about it
            return
        if self._is_broken():
            del self._connection.run_on_commit[self._hooks :]
            self._connection.needs_rollback = False
            self._connection.savepoint_rollback(self._savepoint)
        self._connection.savepoint_commit(self._savepoint)

    def _is_broken(self) -> bool:
        pgconn = getattr(self._connection.connection, "pgconn", None)
        failed = pgconn is not None and pgconn.transaction_status == TransactionStatus.INERROR
        return self._connection.needs_rollback or failed


class OpenTransactions:
    """The open transactions of all connections of this thread, around one attempt."""

    def __enter__(self) -> Self:
        """Set a savepoint in each."""
        opened = connections.all(initialized_only=True)
        self._each = [OpenTransaction(connection) for connection in opened if connection.in_atomic_block]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the savepoints, or roll back to them."""
        for transaction in self._each:
            transaction.end()

    def run_hooks(self) -> None:
        """Call the commit hooks that were registered since."""
        for transaction in self._each:
            transaction.run_hooks()


class CommittingExecutor(Executor):
    """Calls the commit hooks of a `def` task within its attempt, as in a worker: if one raises, the attempt fails.

    Those of an `async def` task belong to another thread than its own: they are called after the attempt.
    """

    transactions = OpenTransactions()

    def _run_here(self, task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        try:
            return super()._run_here(task, running)
        finally:
            self.transactions.run_hooks()
