"""When a worker looks for jobs that it holds and never heard of.

A claim may be committed while its answer is lost with the connection, even after that: a statement on its way, in a
network that stalls, arrives whenever the network pleases. And a job to be given back may be locked by somebody. So the
worker looks for such jobs once the database answers again, twice soon after that, and once in each lease from then on:
as long as it lives, nobody else does.
"""

LOOKS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When, in leases since the database answers again: at once, and with a lease of a minute after 1, 6 and 60 s. Then
once in a lease."""

REFUSED_INTERVAL = 60.0
"""Seconds until the next look after one that the database has refused; a lease, where that is longer."""


class StrayChecks:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._looks: list[float] = []  # those to come, in leases
        self._since = 0.0
        self.next_at = float("inf")
        """When to look; infinity: there is no reason to."""

    def expect(self, now: float) -> None:
        """Note that there may be such: the connection broke, or a job to be given back was locked."""
        self._looks = list(LOOKS)
        self.next_at = now

    def refused(self, now: float) -> None:
        """Note that the database did not manage the look that was due, in the time that it has."""
        self.next_at = now + max(self._lease, REFUSED_INTERVAL)

    def done(self, now: float) -> None:
        """Note that the look that was due is done."""
        if self._looks and self._looks.pop(0) == LOOKS[0]:
            self._since = now
        self.next_at = self._since + self._looks[0] * self._lease if self._looks else now + self._lease
