"""Remembers how far a worker has claimed in each queue, so that the next claim need not start at the front.

While any old snapshot is open, PostgreSQL keeps the index entries of claimed jobs, and a claim from the front of a
queue walks over all of them: 0.3 s for a million. So a claim starts where the last completed claim ended. That is only
a shortcut: a job may come in before that position (by a late commit, a higher priority or a release). A claim from the
front finds it. A claim from the front that took 1 ms is followed by the next after 19 ms; one that took 40 ms or more,
after 0.8 s.

Pure: callers pass the time, in monotonic seconds.
"""

from collections.abc import Mapping, Sequence

from ..values.records import QUEUE_HEAD, ClaimedJob, QueuePosition

FULL_SCAN_SHARE = 1 / 20
"""The share of its time that a worker spends on claims from the front; more if `MAX_FULL_SCAN_PAUSE` demands it."""

MAX_FULL_SCAN_PAUSE = 0.8
"""Seconds between claims from the front, at most, whatever they cost: every job is found within about a second."""

CHEAP = 0.005
"""Seconds: a claim from the front that takes less may come more often, for jobs that were admitted just now."""

FIRST_PAUSE, LONGEST_PAUSE = 4.0, 60.0
"""Seconds until the next claim from the front after one that timed out, doubled each time."""


def pause_after(took: float) -> float:
    """Seconds until the next claim from the front, after one that took `took` seconds."""
    return min(took * (1 / FULL_SCAN_SHARE - 1), MAX_FULL_SCAN_PAUSE)


class ClaimCursor:
    def __init__(self) -> None:
        self._positions: dict[str, QueuePosition] = {}
        self._failures = 0
        self._is_front_cheap = True
        self.due_at = 0.0
        """When to claim from the front again."""

    def start(self, now: float, *, from_front: bool = False) -> Mapping[str, QueuePosition]:
        """The position to claim from, by queue. A queue without one is searched from its front.

        from_front: there may be jobs before the positions; search them as well, if that is cheap.
        """
        if self.due_at > now and not (from_front and self._is_front_cheap):
            return dict(self._positions)
        self.due_at = now + MAX_FULL_SCAN_PAUSE  # until the cost of this claim is known
        return {}

    def claimed(
        self, jobs: Sequence[ClaimedJob], *, after: Mapping[str, QueuePosition], took: float, now: float
    ) -> None:
        """Note the jobs of a claim after these positions, in order, and the seconds that it took."""
        if not after:
            self._failures = 0
            walk = min(
                (job.claim_seconds for job in jobs), default=took
            )  # of the first row: the others count updates too
            self.due_at = now + pause_after(walk)
            self._is_front_cheap = walk < CHEAP
            self._positions = {}
        for name, last in {job.queue_name: job for job in jobs}.items():
            # A claim from the front, sent later than this one, may have found earlier jobs: keep its position.
            start = after.get(name, QUEUE_HEAD)
            if name not in self._positions or self._positions[name] >= start:
                self._positions[name] = max(last.position, start)  # a job that was just admitted may be before it

    def start_over(self) -> None:
        """Claim from the front at once, unless the last claim from the front failed."""
        if not self._failures:
            self.due_at = 0.0

    def look_failed(self, now: float) -> bool:
        """Note that a claim from the front timed out. Returns whether a position is known to claim from meanwhile."""
        self._failures += 1
        self._is_front_cheap = False
        self.due_at = now + min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
        return bool(self._positions)

    def move_to(self, positions: Mapping[str, QueuePosition], now: float) -> None:
        """Claim after these positions, and the other known ones, until the next claim from the front."""
        self._positions.update(positions)
        self.due_at = max(self.due_at, now + MAX_FULL_SCAN_PAUSE)
