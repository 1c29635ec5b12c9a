"""The verbs of operators. A job whose status does not allow the verb stays unchanged.

Each verb changes one batch, in one statement that also records in the row what was done, by whom and why.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from ..admission.queues import columns_of, rate_columns_of
from ..columns import check_columns, check_run_after
from ..events.events import JobsOperated
from ..exceptions import UniqueKeyDeadlock
from ..values.codec import shorten
from ..values.outcomes import Delay, checked_seconds
from . import policy_sql, sql
from .notify import LIMITS_PAYLOAD, notify_supervisors, wake, wake_supervisors
from .parameters import noted
from .unique import UniqueKeys, explained_deadlock


class Operating(UniqueKeys):
    """Used by the admin and by the methods of `Job`. Each method returns the changed jobs: ids, with the new status."""

    def retry(self, ids: Iterable[int], *, over: Delay = 0.0, by: str = "", reason: str = "") -> dict[int, str]:
        """Put failed and discarded jobs back into their queues: at once, or each at a random time within `over`.

        A job in another status stays unchanged, and so does one whose unique key another job holds. Raises
        `UniqueKeyDeadlock` in a transaction of the caller that waits for another one, which waits for it.
        """
        values = _noted(ids, by, reason) | {"over": checked_seconds("over", over)}
        for _ in range(10):
            try:
                with explained_deadlock(True), transaction.atomic(using=self.alias):
                    rows = self.rows(sql.RETRY, values)
            except UniqueKeyDeadlock:
                if self.connection.in_atomic_block:  # it may hold the key that the other one waits for
                    raise
                continue
            except IntegrityError:
                # A finished job still has one of the unique keys, or another job took one in between: the next try
                # skips that job.
                self.free_unique_keys(self.unique_keys_of(values["ids"]))
                continue
            if rows:
                wake_supervisors(self, [values["over"] / len(rows)])
            return self._operated("retry", rows, by, reason)
        raise IntegrityError(
            "The unique keys of these jobs are being taken by others again and again; retry them singly."
        )

    def discard(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
        """Finish jobs that wait without running them; also a job that failed and at which a sequence halts."""
        values = _noted(ids, by, reason) | {"last_error": _reason_line("Discarded", by, reason)}
        return self._operated("discard", self.rows(sql.DISCARD, values), by, reason)

    def cancel(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
        """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
        values = _noted(ids, by, reason) | {"last_error": _reason_line("Cancelled", by, reason)}
        return self._operated("cancel", self.rows(sql.CANCEL, values), by, reason)

    def run_now(self, ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
        """Make scheduled jobs, retries among them, claimable now. The next attempt keeps its number."""
        return self._operated("run_now", self.rows(sql.RUN_NOW, _noted(ids, by, reason)), by, reason)

    def postpone(
        self, ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
    ) -> dict[int, str]:
        """Move the due time of waiting jobs to `run_after`; a timedelta counts from now.

        A job in another status stays unchanged, and so does one that is due later anyway. Raises `InvalidOption` for a
        time that the column cannot store.
        """
        values = _noted(ids, by, reason) | _due(run_after)
        rows = self.rows(sql.POSTPONE, values)
        if rows:
            wake_supervisors(self, [values["delay"]])
        return self._operated("postpone", rows, by, reason)

    def reschedule(
        self, ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
    ) -> dict[int, str]:
        """Set the due time of waiting jobs, to an earlier or a later one; a timedelta counts from now.

        A job in another status stays unchanged. Raises `InvalidOption` for a time that the column cannot store.
        """
        values = _noted(ids, by, reason) | _due(run_after)
        rows = self.rows(sql.RESCHEDULE, values)
        if rows:
            wake_supervisors(self, [values["delay"]])
        return self._operated("reschedule", rows, by, reason)

    def change_queue(self, ids: Iterable[int], queue_name: str, *, by: str = "", reason: str = "") -> dict[int, str]:
        """Put waiting jobs into another queue. A job that is in it already, or in another status, stays unchanged.

        Raises `InvalidOption` for a name that no queue can have.
        """
        check_columns({"queue_name": queue_name})
        keys = columns_of(queue_name)._asdict() | rate_columns_of(queue_name)._asdict()
        values = _noted(ids, by, reason) | keys | {"queue_name": queue_name}
        return self._operated("change_queue", self.rows(policy_sql.CHANGE_QUEUE, values), by, reason)

    def change_priority(self, ids: Iterable[int], priority: int, *, by: str = "", reason: str = "") -> dict[int, str]:
        """Give waiting jobs another priority. A job that has it already, or in another status, stays unchanged.

        Raises `InvalidOption` for a number that is no priority.
        """
        check_columns({"priority": priority})
        values = _noted(ids, by, reason) | {"priority": priority}
        return self._operated("change_priority", self.rows(sql.CHANGE_PRIORITY, values), by, reason)

    def _operated(self, verb: str, rows: list[tuple[Any, ...]], by: str, reason: str) -> dict[int, str]:
        """Notify the workers that can claim these jobs, and send the event. Returns the ids, with the new status."""
        wake(self, (queue_name for _, queue_name, status in rows if status == "queued"))
        if any(status == "blocked" for _, _, status in rows):
            notify_supervisors(self, LIMITS_PAYLOAD)
        changed = {id: status for id, _, status in rows}
        if changed:
            self.send(JobsOperated(self.alias, verb, list(changed), by, reason))
        return changed


def _noted(ids: Iterable[int], by: str, reason: str) -> dict[str, Any]:
    return {"ids": list(ids), **noted(by, reason)}


def _due(run_after: datetime | timedelta) -> dict[str, Any]:
    """The parameters of a due time. Raises `InvalidOption` for one that the column cannot store."""
    check_run_after(run_after)
    return {
        "run_after": run_after if isinstance(run_after, datetime) else None,
        "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0,
    }


def _reason_line(done: str, by: str, reason: str) -> str:
    if not by:
        return shorten(reason) or f"{done} by hand."
    return shorten(f"{done} by {by}: {reason}" if reason else f"{done} by {by}.")
