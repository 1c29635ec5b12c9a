"""The methods that pause and resume queues."""

from datetime import timedelta

from ..columns import check_columns
from ..events.events import QueuePaused, QueueResumed
from ..exceptions import InvalidOption
from . import policy_sql as sql
from .notify import LIMITS_PAYLOAD, QUEUES_PAYLOAD, notify_supervisors, wake
from .parameters import noted
from .statements import Statements

LONGEST_PAUSE = timedelta(days=10 * 365)
"""A longer pause is a mistake, or one without an end."""


class Queues(Statements):
    """Used by the admin, the command line and the methods of `Queue`."""

    def pause_queue(self, name: str, *, for_: timedelta | None = None, by: str = "", reason: str = "") -> None:
        """Keep workers from claiming jobs of this queue: for a time, or until it is resumed.

        Raises `InvalidOption` for a value that cannot be used.
        """
        check_columns({"queue_name": name})
        if for_ is not None and not (isinstance(for_, timedelta) and timedelta(0) < for_ <= LONGEST_PAUSE):
            raise InvalidOption(
                f"for_ must be a timedelta of more than 0 and at most {LONGEST_PAUSE.days} days, or None until the "
                f"queue is resumed, not {for_!r}."
            )
        seconds = None if for_ is None else for_.total_seconds()
        values = {"name": name, "seconds": seconds, **noted(by, reason)}
        [(until, stored_by, stored_reason)] = self.rows(sql.PAUSE_QUEUE, values)
        notify_supervisors(self, QUEUES_PAYLOAD)
        self.send(QueuePaused(self.alias, name, until, stored_by, stored_reason))

    def resume_queue(self, name: str, *, by: str = "") -> bool:
        """Let workers claim jobs of this queue again. Returns whether it was paused."""
        check_columns({"queue_name": name})
        rows = self.rows(sql.RESUME_QUEUE, {"name": name})
        if not rows:
            return False
        wake(self, [name])
        notify_supervisors(self, QUEUES_PAYLOAD)
        notify_supervisors(self, LIMITS_PAYLOAD)  # its jobs that wait for permits were passed over
        self.send(QueueResumed(self.alias, name, noted(by, "")["by"]))
        return True

    def paused_queues(self, *, limit: int | None = None) -> list[str]:
        return [name for (name,) in self.rows(sql.PAUSED_QUEUES, {"limit": limit})]
