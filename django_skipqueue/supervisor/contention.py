"""When a machine answers a notification, if others do so as well. Pure: callers pass the time, in monotonic seconds.

Each notification reaches every machine, and one of them wins a lone job. A machine that claims in vain answers the next
notifications together, ten times a second. The winner goes on answering at once. If the winner is full, another machine
with a free slot finds the job within a tenth of a second.
"""

import random
from collections.abc import Collection

PAUSE = 0.1
"""Seconds between two answers of a machine that claims in vain, at most."""

EARLY = 0.05
"""Seconds after a win in which a vain claim counts for nothing."""


class Contention:
    """One for each supervisor."""

    def __init__(self) -> None:
        self.machines = 1
        """How many supervisors have live workers, this one included."""
        self._phase = random.uniform(0, PAUSE)  # noqa: S311 (spreads the machines, guards nothing)
        self._quiet_until = 0.0
        self._won_at = float("-inf")

    def see(self, others: Collection[str]) -> None:
        """Note the ids of the live workers of others: `supervisor/number:digits`."""
        self.machines = 1 + len({id.rpartition("/")[0] for id in others})

    def answer_at(self, jobs: int, now: float) -> float:
        """When to answer notifications of this many jobs. At once if there are jobs for all."""
        return now if jobs >= self.machines else max(self._quiet_until, now)

    def won(self, now: float) -> None:
        self._quiet_until = 0.0
        self._won_at = now

    def lost(self, now: float) -> None:
        """Note that they have found none. After a win that means nothing: the notification may come after the claim."""
        if self.machines > 1 and now - self._won_at > EARLY:
            self._quiet_until = now + PAUSE - (now - self._phase) % PAUSE
