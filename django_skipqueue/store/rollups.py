"""The methods that add up what has happened to jobs: roll-ups by minute, by hour and since the beginning.

Invariant: they never wait for another transaction for longer than `PATIENCE`, since settling jobs must go on.
"""

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from . import sql
from .claim_costs import ClaimCost
from .observe import QueueNow
from .parameters import Cursor, Rows, Statement, pipelined
from .statements import BATCH, Statements

PATIENCE = "500ms"
"""How long a statement about roll-ups waits for a lock, as PostgreSQL writes it."""

MOST_COUNTED = 100_000
"""Enqueued jobs that one statement counts."""

LONGEST_COMMIT = 60.0
"""Seconds between the INSERT of a job and its commit after which it may be left out of the enqueued ones."""


class RollingUp(Statements):
    """Used by workers and supervisors."""

    def roll_up(self, rows: Sequence[Mapping[str, Any]], failures: Sequence[Mapping[str, Any]]) -> None:
        """Add counts to the roll-ups, all or none: the rows of a `Tally`."""
        self._run(
            *(
                (statement, {"rows": json.dumps(counted)})
                for statement, counted in ((sql.ROLL_UP, rows), (sql.ROLL_UP_FAILURES, failures))
                if counted
            )
        )

    def start_counting(self) -> None:
        """Count the jobs that are enqueued from now on, unless they are counted already."""
        self._run((sql.START_COUNTING, {}))

    def count_enqueued(self, *, interval: float) -> bool:
        """Add enqueued jobs to the roll-ups, if nobody has for `interval` seconds. Returns whether there are more."""
        values = {"interval": interval, "patience": LONGEST_COMMIT, "limit": MOST_COUNTED}
        (rows,) = self._run((sql.COUNT_ENQUEUED, values))
        return any(has_more for (has_more,) in rows)

    def depths_are_due(self) -> bool:
        (((is_due,),),) = self._run((sql.DEPTHS_ARE_DUE, {}))
        return bool(is_due)

    def roll_up_depths(self, queues: Sequence[QueueNow], costs: Sequence[ClaimCost] = ()) -> None:
        """Write the depth of each queue and of all together, and what claims of these queues read."""
        waits = [queue.oldest for queue in queues if queue.oldest is not None]
        everything = ("", sum(queue.queued for queue in queues), max(waits, default=0.0))
        by_queue = {cost.queue_name: {"claim_pages": cost.pages, "claim_rows": cost.rows} for cost in costs}
        by_queue[""] = max(by_queue.values(), key=itemgetter("claim_pages"), default={})
        rows = [
            {"queue_name": name, "depth": depth, "oldest_seconds": oldest, **by_queue.get(name, {})}
            for name, depth, oldest in (
                everything,
                *((queue.name, queue.queued, queue.oldest or 0.0) for queue in queues),
            )
        ]
        self._run((sql.ROLL_UP_DEPTHS, {"rows": json.dumps(rows)}))

    def prune_rollups(self, ages: Mapping[int, float], *, limit: int = BATCH) -> bool:
        """Delete roll-ups older than the age in seconds of their span. Returns whether there may be more."""
        has_more = False
        for span, age in ages.items():
            for statement in (sql.PRUNE_ROLLUPS, sql.PRUNE_FAILURES):
                (((number,),),) = self._run((statement, {"span": span, "age": age, "limit": limit}))
                has_more = has_more or number >= limit
        return has_more

    def _run(self, *statements: Statement) -> list[Rows | Cursor]:
        """Run the statements in one transaction and round trip, with little patience for locks. Returns their rows."""
        connection = self.connection
        connection.ensure_connection()
        with connection.wrap_database_errors:
            limit = sql.SET_LOCK_TIMEOUT, {"timeout": PATIENCE}
            return pipelined(connection.connection, [limit, *statements], None)[1:]
