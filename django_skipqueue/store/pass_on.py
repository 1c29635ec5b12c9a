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
from .parameters import Admitted, Rows, Statement, as_array, fetched, pipelined
from .statements import Statements


class Contested(NamedTuple):
    """A key with waiting jobs. The lists are empty if there is nothing to pass on; each has a hundred ids at most."""

    key: str
    is_inverted: bool
    """Whether a waiting job has a higher priority than one that no worker has claimed."""
    unserved: Sequence[int]
    """The ids of unclaimed jobs in queues that are paused, or that no live worker serves."""
    held_up: Sequence[int]
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
        values = {"after": after, "limit": limit, **_served(idle=False)}
        return [
            Contested(key, bool(is_inverted), unserved or (), held_up or ())
            for key, is_inverted, unserved, held_up in self.rows(statement, values)
        ]

    def pass_permits_on(
        self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False
    ) -> set[int]:
        """Give permits of these keys to waiting jobs of a higher priority, and put the queued ones back.

        ids: put these back, for waiting jobs of other queues that are served; `idle`: by a worker with a free slot.
        Returns the ids of the jobs that were put back.
        """
        lock: Statement = (LOCK_KEYS, {"ids": [], "keys": sorted(keys)})
        with self.connection.wrap_database_errors:
            statements = [lock, (sql.PASS_PERMITS_ON, _values(ids, idle))]
            locked, admitted = pipelined(self.connection.connection, statements, None)
            rows = fetched(admitted)
            return self._passed_on(rows, with_rates(self, Admitted.decode(locked, rows)))

    def pass_tokens_on(
        self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False
    ) -> set[int]:
        """Give tokens of these keys to other jobs, as `pass_permits_on` does with permits."""
        lock: Statement = (LOCK_RATES, {"keys": sorted(keys)})
        with self.connection.wrap_database_errors:
            statements = [lock, (sql.PASS_TOKENS_ON, _values(ids, idle))]
            _, admitted = pipelined(self.connection.connection, statements, None)
            rows = fetched(admitted)
            return self._passed_on(rows, {queue_name: number for queue_name, number, _ in rows})

    def _passed_on(self, rows: Rows, counts: dict[str, int]) -> set[int]:
        """Notify the workers, and send the event. Returns the ids of the jobs that were put back."""
        if counts:
            wake(self, counts)
            self.send(JobsAdmitted(self.alias, counts))
        return {id for *_, ids in rows for id in ids or ()}


def _values(ids: Collection[int] | None, idle: bool) -> dict[str, Any]:
    return {"ids": None if ids is None else as_array(ids), **_served(idle=idle)}


def _served(*, idle: bool) -> dict[str, Any]:
    return {"idle": idle, "timeout": settings.worker_timeout, "carried": sorted(settings.carried_queues)}
