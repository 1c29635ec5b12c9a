"""The gates. A gate keeps jobs out of their queues until a condition holds, then admits them.

A job waits at a gate as `scheduled` or `blocked`, outside the claim index. A gate has two halves. Its condition, in
`sql.gates`, is checked when a job enters from outside: at an enqueue, a retry, a manual retry, and when the previous
gate admits the job. Its class, here, admits: supervisors call it at intervals, and workers before a drain ends.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from ..events.events import JobsAdmitted
from . import sql
from .notify import wake
from .statements import BATCH, Statements


class Gate(Protocol):
    """Admits jobs. Any number of processes may call it at the same time."""

    name: str
    """The name of its condition in `sql.gates.CONDITIONS`."""

    def admit(self, store: Statements, *, limit: int) -> Mapping[str, int]:
        """Admit up to `limit` jobs whose condition has ended, skipping locked rows. Returns the number, by queue."""

    def next_due(self, store: Statements) -> float | None:
        """The seconds until there may be a job to admit; 0 or less: now. `None` if no job waits at this gate."""


class TimeGate:
    """Holds a job until its `run_after`."""

    name = "time"

    def admit(self, store: Statements, *, limit: int) -> Mapping[str, int]:
        """Admit the jobs that are due, the earliest first."""
        return dict(store.rows(sql.ADMIT, {"limit": limit}))

    def next_due(self, store: Statements) -> float | None:
        """The seconds until the earliest job is due."""
        return next((seconds for (seconds,) in store.rows(sql.NEXT_DUE)), None)


GATES: tuple[Gate, ...] = (TimeGate(),)
"""In the order of their conditions."""


class Admitting(Statements):
    """Used by supervisors. Skips rows that others have locked, so several supervisors may call it at the same time."""

    def admit(self, *, limit: int = BATCH) -> dict[str, int]:
        """Admit up to `limit` jobs at each gate whose condition has ended. Returns the number, by queue."""
        admitted: Counter[str] = Counter()
        for gate in GATES:
            admitted.update(gate.admit(self, limit=limit))
        wake(self, admitted)
        if admitted:
            self.send(JobsAdmitted(self.alias, dict(admitted)))
        return dict(admitted)

    def next_due(self) -> float | None:
        """The seconds until a gate may have a job to admit, below 0 if one is overdue; `None` if no job waits."""
        return min((due for gate in GATES if (due := gate.next_due(self)) is not None), default=None)
