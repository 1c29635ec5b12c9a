"""Admits jobs to their queues once their gates let them through."""

from collections.abc import Collection

from ..queue.gates import key_gates, sweep_gates_soon
from ..queue.notify import LIMITS_PAYLOAD, SCHEDULED_PAYLOAD, SOON, keys_in
from ..queue.store import Store
from ..worker.loop import Periodic

DUE_CHECK = 1.0
"""Seconds between two checks, at most, while jobs are scheduled. A job due earlier shortens the interval."""

UNSCHEDULED_CHECK = SOON
"""Seconds until the next check while no job is scheduled. A notification announces a job due earlier."""

LEAST_DUE_CHECK = 0.01
"""Seconds between two checks, at least, however many notifications come."""


class Admit(Periodic):
    """Runs the gates when there may be a job to admit: for the time gate, when the next one is due."""

    name = "admit"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked_at = float("-inf")

    def run(self, now: float) -> None:
        self._looked_at = now
        next_due = self._store.next_due()
        if next_due is None:
            interval = UNSCHEDULED_CHECK
        elif next_due > 0:
            interval = min(next_due, DUE_CHECK)
        elif self._store.admit().goes_on:
            interval = 0.0
        else:  # another transaction has locked the due job, for example its discard; or no permit is free
            next_due = self._store.next_due() or 0.0
            interval = min(next_due, DUE_CHECK) if next_due > 0 else DUE_CHECK
        self.run_again_in(interval)

    def notified(self, payloads: Collection[str]) -> None:
        """Check at once: a job is due soon, or may be admitted. After an error, the delay is not shortened."""
        if LIMITS_PAYLOAD in payloads:
            sweep_gates_soon(self._store)
        is_for_gates = SCHEDULED_PAYLOAD in payloads or LIMITS_PAYLOAD in payloads
        for gate in key_gates():
            if keys := keys_in(payloads, gate.prefix):
                gate.want(self._store.alias, keys)
                is_for_gates = True
        if is_for_gates and not self.has_failed:
            self.due_at = min(self.due_at, self._looked_at + LEAST_DUE_CHECK)
