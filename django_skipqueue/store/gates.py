"""The gates: what keeps jobs out of their queues until a condition holds, and lets them in then.

A job waits at a gate as `scheduled` or `blocked`, where no claim walks over it. A gate has two halves. Its condition,
in `sql.gates`, is asked when a job enters from outside: at an enqueue, a retry, a retry by hand, and when it has passed
the gate before. Its class, here, admits: supervisors call it at intervals, and workers before a drain ends.
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
    """As in `sql.gates.CONDITIONS`."""

    def admit(self, store: Statements, *, limit: int) -> Mapping[str, int]:
        """Let up to `limit` jobs through that the gate holds no longer, and no locked one; how many of each queue."""

    def next_due(self, store: Statements) -> float | None:
        """The seconds until there may be a job to admit, 0 or less: now; `None`: no job waits here."""


class TimeGate:
    """Holds a job until its `run_after`."""

    name = "time"

    def admit(self, store: Statements, *, limit: int) -> Mapping[str, int]:
        """Admit those that are due, the earliest first."""
        return dict(store.rows(sql.ADMIT, {"limit": limit}))

    def next_due(self, store: Statements) -> float | None:
        """The seconds until the earliest is due."""
        return next((seconds for (seconds,) in store.rows(sql.NEXT_DUE)), None)


GATES: tuple[Gate, ...] = (TimeGate(),)
"""In the order of their conditions."""


class Admitting(Statements):
    """For supervisors; idempotent, and what others have locked is skipped."""

    def admit(self, *, limit: int = BATCH) -> dict[str, int]:
        """Let up to `limit` jobs through each gate that holds them no longer; how many in each queue."""
        admitted: Counter[str] = Counter()
        for gate in GATES:
            admitted.update(gate.admit(self, limit=limit))
        wake(self.alias, admitted)
        if admitted:
            self.send(JobsAdmitted(self.alias, dict(admitted)))
        return dict(admitted)

    def next_due(self) -> float | None:
        """The seconds until a gate may have a job to admit, below 0 if one is overdue; `None`: no job waits at one."""
        return min((due for gate in GATES if (due := gate.next_due(self)) is not None), default=None)
