"""What a worker does next: apply a result, settle outcomes, claim jobs; and when, if there is nothing to do now.

`next_plan` is pure. It is asked before each exchange, and before each sleep of the control loop. Of the times in `Work`
the first decides, and nothing is sent before the connection may be opened again.

An exchange settles and claims, whatever the reason for it: to claim beside a settle costs no further round trip.

Invariant: neither half of an exchange delays the other for ever, and a failed exchange is not repeated unchanged. After
a failure the settle and the claim are each sent alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..values.records import NEVER

Half = Literal["settle", "claim"]


class Work(NamedTuple):
    """All that the plan depends on. Times are monotonic seconds; `NEVER`: there is no reason."""

    has_result: bool = False
    """Whether the result of the last exchange has not been applied."""
    has_finished: bool = False
    """Whether attempts have finished whose outcomes were never sent."""
    outcomes_at: float = NEVER
    """When outcomes can be sent: 0 if some wait, or later for those of locked rows, and those that took too long."""
    admission_at: float = NEVER
    """When a part wants to admit jobs: see `worker.in_exchange`."""
    claim_at: float = NEVER
    """When to look for jobs, even if no outcome is to be sent."""
    room: int = 0
    """How many jobs there is room for."""
    alone: Sequence[Half] = ()
    """After a failure: which halves are still to be sent alone, in this order."""
    open_at: float = 0.0
    """When the connection may be used again after it broke."""


@dataclass(frozen=True, slots=True)
class Plan:
    at: float
    """When there is something to do. If that is in the future, there is nothing to do now."""
    applies: bool = False
    """Whether to apply the result of the last exchange, and to plan again: it changes what there is room for."""
    settles: bool = False
    """Whether to send outcomes. Those that come after the plan is made are sent too."""
    claims: int = 0
    """How many jobs to claim, at most."""
    settles_alone: bool = False
    """Whether to claim nothing if there are outcomes to send."""

    @property
    def sends(self) -> bool:
        """Whether an exchange is due."""
        return self.settles or self.claims > 0


def next_plan(work: Work, now: float) -> Plan:
    at = min(work.outcomes_at, work.admission_at, work.claim_at if work.room else NEVER)
    if work.has_result or work.has_finished:
        at = 0.0
    at = max(at, work.open_at)
    if at > now:
        return Plan(at)
    if work.has_result and not work.has_finished:
        return Plan(at, applies=True)  # otherwise it is applied while the database works
    if work.room and work.alone and work.alone[0] == "claim":
        return Plan(at, claims=work.room)
    return Plan(at, settles=True, claims=work.room, settles_alone=bool(work.alone))
