"""When a worker looks for jobs that it holds and never heard of.

A claim may have been committed while its answer was lost with the connection. So the worker looks for such jobs once
the database answers again, and a lease later, when a statement that was still under way has surely ended.
"""


class StrayChecks:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._times: list[float] = []

    @property
    def next_at(self) -> float:
        """When to look; infinity: there is no reason to."""
        return self._times[0] if self._times else float("inf")

    def expect(self, now: float) -> None:
        """Note that the connection broke."""
        self._times = [now, now + self._lease]

    def done(self) -> None:
        """Note that the look that was due is done."""
        self._times.pop(0)
