"""The verbs of operators, who change what becomes of jobs; what is not in a status that allows it stays as it is.

Each is one batch, and notes in the row what was done, by whom and why, in the statement that does it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from ..events.events import JobsOperated
from ..values.codec import shorten
from ..values.outcomes import Delay, seconds
from . import sql
from .columns import check_run_after
from .notify import wake, wake_supervisors
from .statements import Statements

NAME_LIMIT = 200


class Operating(Statements):
    """For the admin, and for whoever calls a job's own methods. Each returns the ids of the jobs that were changed."""

    def retry(self, ids: Iterable[int], *, over: Delay = 0.0, by: str = "", reason: str = "") -> set[int]:
        """Put failed and discarded jobs back into their queues; at once, or spread at random `over` a time.

        Left as they are: jobs in another status, and those whose unique key a job that is not finished holds.
        """
        values = _noted(ids, by, reason) | {"over": seconds(over)}
        for _ in range(10):
            try:
                with transaction.atomic(using=self.alias):
                    rows = self.rows(sql.RETRY, values)
            except IntegrityError:
                continue  # somebody took one of the unique keys meanwhile; the next look sees it
            wake(self.alias, (queue_name for _, queue_name, status in rows if status == "queued"))
            if rows:
                wake_supervisors(self.alias, [values["over"] / len(rows)])
            return self._operated("retry", rows, by, reason)
        raise IntegrityError(
            "The unique keys of these jobs are being taken by others again and again; retry them singly."
        )

    def discard(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> set[int]:
        """Finish jobs that wait without running them."""
        values = _noted(ids, by, reason) | {"last_error": _told("Discarded", by, reason)}
        return self._operated("discard", self.rows(sql.DISCARD, values), by, reason)

    def cancel(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> set[int]:
        """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
        values = _noted(ids, by, reason) | {"last_error": _told("Cancelled", by, reason)}
        return self._operated("cancel", self.rows(sql.CANCEL, values), by, reason)

    def run_now(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> set[int]:
        """Make scheduled jobs, retries among them, claimable now. A retry is the same attempt as it would have been."""
        rows = self.rows(sql.RUN_NOW, _noted(ids, by, reason))
        wake(self.alias, (queue_name for _, queue_name in rows))
        return self._operated("run_now", rows, by, reason)

    def postpone(
        self, ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
    ) -> set[int]:
        """Have jobs that wait be due at a later time, or for a delay counted from now.

        Left as they are: jobs in another status, and those that are due later anyway. Raises `InvalidOption` for a time
        that no row can have.
        """
        check_run_after(run_after)
        values = _noted(ids, by, reason) | {
            "run_after": run_after if isinstance(run_after, datetime) else None,
            "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0,
        }
        rows = self.rows(sql.POSTPONE, values)
        if rows:
            wake_supervisors(self.alias, [values["delay"]])
        return self._operated("postpone", rows, by, reason)

    def _operated(self, verb: str, rows: list[tuple[Any, ...]], by: str, reason: str) -> set[int]:
        """Say what was done to the jobs whose ids these rows begin with; those ids."""
        ids = [id for id, *_ in rows]
        if ids:
            self.send(JobsOperated(self.alias, verb, ids, by, reason))
        return set(ids)


def _noted(ids: Iterable[int], by: str, reason: str) -> dict[str, Any]:
    return {"ids": list(ids), "by": shorten(by, NAME_LIMIT), "reason": shorten(reason)}


def _told(done: str, by: str, reason: str) -> str:
    """What the row says in the place of an error."""
    if not by:
        return shorten(reason) or f"{done} by hand."
    return shorten(f"{done} by {by}: {reason}" if reason else f"{done} by {by}.")
