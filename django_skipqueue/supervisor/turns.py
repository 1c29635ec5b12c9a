"""When a machine answers a notification, if others do so as well. Pure: callers pass the time, in monotonic seconds.

Each notification reaches every machine, and one of them wins the job. A machine that claims in vain waits for a random
time of up to a tenth of a second, and answers the notifications of that time together. With many machines it waits
longer, so that all of them together send 40 vain claims a second. The winner goes on answering at once. If the winner
is full, a machine that waits finds the job, after 25 ms on the average.
"""

import random
from collections.abc import Collection

SHORTEST = 0.1
"""The longest wait, in seconds, with few machines."""

SHARE = 1 / 20
"""Seconds that each machine adds to the longest wait, if this is more. The mean wait is half the longest."""

EARLY = 0.05
"""Seconds after a win in which a vain claim counts for nothing."""


class Turns:
    """One for each supervisor."""

    def __init__(self) -> None:
        self.machines = 1
        """How many supervisors have live workers, this one included."""
        self._quiet_until = 0.0
        self._won_at = float("-inf")

    def see(self, others: Collection[str]) -> None:
        """Note the ids of the live workers of others: `supervisor/number:digits`."""
        self.machines = 1 + len({id.rpartition("/")[0] for id in others})

    def answer_at(self, jobs: int, now: float) -> float:
        """When to answer a notification of so many jobs. At once if there are jobs for all."""
        return now if jobs >= self.machines else max(self._quiet_until, now)

    def won(self, now: float) -> None:
        """Note that workers of this machine have claimed the jobs that they were called for."""
        self._quiet_until = 0.0
        self._won_at = now

    def lost(self, now: float) -> None:
        """Note that they have found none. After a win that means nothing: the notification may come after the claim."""
        if self.machines > 1 and now - self._won_at > EARLY:
            longest = max(SHORTEST, self.machines * SHARE)
            self._quiet_until = now + random.uniform(0, longest)  # noqa: S311 (spreads load, guards nothing)
