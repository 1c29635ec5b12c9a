"""Schedules the checks for orphaned claims: jobs that this worker holds in the table, and does not know of.

A claim may be committed while its answer is lost with the connection, even after that: a statement that is under way
in a network that stalls may arrive later. A release, too, may have skipped a row that another transaction had locked.
As long as the worker lives, nobody else recovers such jobs.
"""

DELAYS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When to check after the connection is back, in worker timeouts. With one of a minute: at once, after 1, 6 and 60 s.
Then once in a worker timeout."""

REFUSED_INTERVAL = 60.0
"""Seconds until the next look after one that the database has refused; the worker timeout, where that is longer."""


class OrphanCheck:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self, worker_timeout: float) -> None:
        self._worker_timeout = worker_timeout
        self._looks: list[float] = []  # those to come, in worker timeouts
        self._since = 0.0
        self.next_at = float("inf")
        """When to look; infinity: there is no reason to."""

    def expect(self, now: float) -> None:
        """Note that there may be such: the connection broke, or a job to be given back was locked."""
        self._looks = list(DELAYS)
        self.next_at = now

    def refused(self, now: float) -> None:
        """Note that the database did not manage the look that was due, in the time that it has."""
        self.next_at = now + max(self._worker_timeout, REFUSED_INTERVAL)

    def done(self, now: float) -> None:
        """Note that the look that was due is done."""
        if self._looks and self._looks.pop(0) == DELAYS[0]:
            self._since = now
        self.next_at = (
            self._since + self._looks[0] * self._worker_timeout if self._looks else now + self._worker_timeout
        )
