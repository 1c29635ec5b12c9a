"""How far a worker has claimed in each queue, so that its next claim need not walk over what it took before.

While anybody's old snapshot is open, PostgreSQL keeps the index entries of claimed jobs, and a claim from the front of
a queue walks over all of them: 0.3 s at a million. So a claim starts where the last one ended that is known of, unless
it is time to look from the front. That is only a shortcut: what comes in before that place (a late commit, a higher
priority, a job given back) is found by the next look from the front, which comes the sooner the less it costs: a look
that takes 1 ms is followed by the next after 19 ms, one that takes 40 ms or more after 0.8 s.

Pure: it is told the time, in monotonic seconds.
"""

from collections.abc import Mapping, Sequence

from ...values.records import QUEUE_HEAD, ClaimedJob, QueuePosition

FULL_SCAN_SHARE = 1 / 20
"""Of its time a worker spends this on choosing jobs from the front, unless they come after `MAX_FULL_SCAN_PAUSE`."""

MAX_FULL_SCAN_PAUSE = 0.8
"""Seconds after which it does so whatever the last time has cost: nothing is found later than after about a second."""

FIRST_PAUSE, LONGEST_PAUSE = 4.0, 60.0
"""Seconds after which it does so where the last time brought no answer; twice as many each time."""


def pause_after(took: float) -> float:
    """The seconds until the next look, where the last one took so many."""
    return min(took * (1 / FULL_SCAN_SHARE - 1), MAX_FULL_SCAN_PAUSE)


class ClaimCursor:
    """The positions of the jobs claimed last, by queue."""

    def __init__(self) -> None:
        self._positions: dict[str, QueuePosition] = {}
        self._failures = 0
        self.due_at = 0.0
        """When to look from the front again."""

    def start(self, now: float) -> Mapping[str, QueuePosition]:
        """The positions after which the next claim looks for jobs; none: from the front of every queue."""
        if self.due_at > now:
            return dict(self._positions)
        self.due_at = now + MAX_FULL_SCAN_PAUSE  # until it is known what this one costs
        return {}

    def claimed(
        self, jobs: Sequence[ClaimedJob], *, after: Mapping[str, QueuePosition], took: float, now: float
    ) -> None:
        """Note what a claim after these positions brought, in order, and took, in seconds."""
        if not after:
            self._failures = 0
            walk = min(
                (job.claim_seconds for job in jobs), default=took
            )  # of the first row: the others count updates too
            self.due_at = now + pause_after(walk)
            self._positions = {}
        for name, last in {job.queue_name: job for job in jobs}.items():
            # A claim from the front that was made after this one was sent may have found earlier jobs: keep its place.
            if name not in self._positions or self._positions[name] >= after.get(name, QUEUE_HEAD):
                self._positions[name] = last.position

    def start_over(self) -> None:
        """Look from the front at once, unless that is what failed."""
        if not self._failures:
            self.due_at = 0.0

    def look_failed(self, now: float) -> bool:
        """Note that a look from the front took too long; whether there is a place to go on from meanwhile."""
        self._failures += 1
        self.due_at = now + min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
        return bool(self._positions)

    def move_to(self, positions: Mapping[str, QueuePosition], now: float) -> None:
        """Claim after these positions, and those that were known, until the next look from the front."""
        self._positions.update(positions)
        self.due_at = max(self.due_at, now + MAX_FULL_SCAN_PAUSE)
