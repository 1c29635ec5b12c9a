"""The methods that pass permits and tokens on to jobs that should start before those that hold them."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ..admission import pass_on_sql as sql
from ..admission.rate_sql import LOCK_RATES
from ..admission.sql import LOCK_KEYS
from ..conf import settings
from ..events.events import JobsAdmitted
from .limits import with_rates
from .notify import wake
from .parameters import Admitted, Statement, as_array, fetched, pipelined
from .statements import Statements


class Contested(NamedTuple):
    """A key with a waiting job whose queue is served, and with jobs that no worker has claimed: at most 100."""

    key: str
    is_inverted: bool
    """Whether the waiting job ranks before one of the unclaimed ones."""
    unserved: Sequence[int]
    """The ids of unclaimed jobs in queues that are paused, or that no live worker serves."""
    unclaimed: Sequence[int]
    """The ids of the other unclaimed jobs."""


class PassingOn(Statements):
    """Used by supervisors."""

    def contested_permits(self, *, after: str, limit: int) -> list[Contested]:
        """At most `limit` keys of limits, alphabetically after `after`."""
        return self._contested(sql.CONTESTED_PERMITS, after, limit)

    def contested_tokens(self, *, after: str, limit: int) -> list[Contested]:
        """At most `limit` keys of rates, alphabetically after `after`."""
        return self._contested(sql.CONTESTED_TOKENS, after, limit)

    def _contested(self, statement: str, after: str, limit: int) -> list[Contested]:
        values = {"after": after, "limit": limit, "idle": False, "timeout": settings.worker_timeout}
        return [
            Contested(key, is_inverted, unserved or (), unclaimed or ())
            for key, is_inverted, unserved, unclaimed in self.rows(statement, values)
        ]

    def pass_permits_on(self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False) -> None:
        """Give permits of these keys to waiting jobs that rank before queued ones, and put the queued ones back.

        ids: put these back, for waiting jobs in queues that are served; with `idle`, by a worker with a free slot.
        """
        lock: Statement = (LOCK_KEYS, {"ids": [], "keys": sorted(keys)})
        with self.connection.wrap_database_errors:
            statements = [lock, (sql.PASS_PERMITS_ON, _values(ids, idle))]
            locked, admitted = pipelined(self.connection.connection, statements, None)
            self._passed_on(with_rates(self, Admitted.decode(locked, admitted)))

    def pass_tokens_on(self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False) -> None:
        """Give tokens of these keys to other jobs, as `pass_permits_on` does with permits."""
        lock: Statement = (LOCK_RATES, {"keys": sorted(keys)})
        with self.connection.wrap_database_errors:
            statements = [lock, (sql.PASS_TOKENS_ON, _values(ids, idle))]
            _, admitted = pipelined(self.connection.connection, statements, None)
            self._passed_on(dict(fetched(admitted)))

    def _passed_on(self, counts: dict[str, int]) -> None:
        if counts:
            wake(self, counts)
            self.send(JobsAdmitted(self.alias, counts))


def _values(ids: Collection[int] | None, idle: bool) -> dict[str, Any]:
    return {"ids": None if ids is None else as_array(ids), "idle": idle, "timeout": settings.worker_timeout}
