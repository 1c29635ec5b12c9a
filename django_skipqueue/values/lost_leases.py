"""How a lease has ended, read from the row of its job. Pure."""

import json
from typing import NamedTuple

from .outcomes import Outcome


class LostLease(NamedTuple):
    """A lease that is no longer valid, and the columns of its job. All are `None` if the row is gone.

    A settle, a release, a recovery and a cancel each raise the lease by 1. A release removes the worker's id. A
    recovery sets `deaths`, and a `last_error` of its own. An outcome empties `deaths`, except that of an unknown task.
    """

    raised_by: int | None
    """The growth of the lease since it was held."""
    status: str | None
    locked_by: str | None
    last_error: str | None
    errors: str | None
    """A JSON list, not yet decoded."""
    has_deaths: bool | None
    is_ended_by_hand: bool | None
    """Whether an operator finished the job, and nothing changed it since: the newest of its `operations` did."""

    @property
    def is_completed(self) -> bool:
        """Whether the holder itself has completed the job: nothing else can."""
        return self.raised_by == 1 and self.status == "completed"

    @property
    def cancel_reason(self) -> str | None:
        """The reason, if the job was cancelled under this lease; else `None`."""
        return self.last_error if self.raised_by == 1 and self.is_ended_by_hand else None

    def written_status(self, outcome: Outcome) -> str | None:
        """The status of the outcome that the holder has written under this lease, which may be `outcome`.

        `None` if it has written none, or if the row does not show it. After the job has changed hands again, only an
        outcome with an error can be recognized: by its entry in `errors`.
        """
        if self.raised_by != 1:
            return outcome.status if self._has_entry(outcome) else None
        if self.is_ended_by_hand:
            return None
        if self.status in ("completed", "discarded"):
            return self.status
        is_recovered = self.has_deaths and self.last_error != outcome.last_error
        if is_recovered or not self.locked_by:
            return None
        return "failed" if self.status == "failed" else "scheduled"

    def _has_entry(self, outcome: Outcome) -> bool:
        """Whether the error of this outcome is in `errors`. The settle has added columns to its entry."""
        if outcome.error is None:
            return False
        entries = [entry for entry in json.loads(self.errors or "[]") if isinstance(entry, dict)]
        return any(outcome.error.items() <= entry.items() for entry in entries)
