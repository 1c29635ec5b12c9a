"""The methods about this connection's session or transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from . import sql
from .statements import Statements


class Session(Statements):
    """Used before statements that must not take long, and to find poolers."""

    def limit_statements(self, seconds: float) -> None:
        """Set the statement timeout of the current transaction, and have its statements walk indexes in one process."""
        self.rows(sql.LIMIT_STATEMENTS, {"timeout": f"{seconds:.3f}s"})

    @contextmanager
    def short_transaction(self, seconds: float) -> Iterator[None]:
        """A transaction, or a savepoint, with a statement timeout that ends with it, since it is rolled back."""
        with transaction.atomic(using=self.alias):
            self.limit_statements(seconds)
            yield
            transaction.set_rollback(True, using=self.alias)

    def backend_pid(self) -> int:
        """The process id of the server's process that runs this statement. A pooler may choose another each time."""
        ((pid,),) = self.rows(sql.BACKEND_PID)
        return int(pid)

    def lock_timeout(self) -> str:
        """The setting of this connection, such as `5s`; `0`: statements wait for ever."""
        ((timeout,),) = self.rows(sql.LOCK_TIMEOUT)
        return str(timeout)

    def bound_transactions(self, seconds: float) -> None:
        """Have the server end this session if one of its transactions takes longer. Needs PostgreSQL 17.

        For a connection that no pooler shares.
        """
        self.rows(sql.BOUND_TRANSACTIONS, {"timeout": f"{seconds:.0f}s"})

    def plan_once(self) -> None:
        """Have this connection plan each prepared statement once, for all values of its parameters.

        For a connection that no pooler shares.
        """
        self.execute(sql.PLAN_ONCE)

    def plan_anew(self) -> None:
        """Have this connection forget the plans of its prepared statements."""
        self.execute(sql.PLAN_ANEW)
