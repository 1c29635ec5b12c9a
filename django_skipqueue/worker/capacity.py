"""What a worker claims next: how many jobs, for which runners, from which queues and positions. Pure.

The callers pass the time, in monotonic seconds.

Ahead of its free slots a worker claims as many jobs as it finished in the last fifth of a second. Half of them run
while the other half is claimed. Short jobs come in batches of hundreds, which share a round trip. Long jobs are not
claimed ahead, so that none waits behind them while another worker is idle.

A worker keeps as many waiting jobs as it finished in the last half second. It releases further ones, if jobs turn out
to be longer than the previous ones.

Invariant: jobs of one runner (threads for `def` tasks, an event loop for `async def` tasks) take no slot of the other,
and no job waits here for much longer than half a second while another worker is idle.

The kind of a job is the runner of its task. A worker learns the kind only after the claim. So while a runner is full,
the worker skips the queues whose last jobs were for that runner, and tries them again every second. A claimed job whose
runner has no room is released. Within a queue, jobs of all kinds stay in their order.

A worker also remembers how far it has claimed in each queue, so that the next claim need not start at the front. While
any old snapshot is open, PostgreSQL keeps the index entries of claimed jobs, and a claim from the front of a queue
walks over all of them: 0.3 s for a million. So a claim starts where the last completed claim ended. That is only a
shortcut: a job may come in before that position (by a late commit, a higher priority or a release). A claim from the
front finds it. A claim from the front that took 1 ms is followed by the next after 19 ms; one that took 40 ms or more,
after 0.8 s.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..jobs.registry import registry
from ..values.counting import Recent
from ..values.records import QUEUE_HEAD, ClaimedJob, QueuePosition

SPAN = 0.2
"""Seconds of work to hold in advance."""

LARGEST = 4_000
"""Jobs held in advance, at most: after a crash of the worker they must wait for its recovery."""

PATIENCE = 0.5
"""Seconds for which a job may wait here. Longer than `SPAN`: another worker must claim a released job again."""


class Prefetch:
    def __init__(self) -> None:
        self._within_span = Recent(SPAN)
        self._within_patience = Recent(PATIENCE)

    def finished(self, count: int, now: float) -> None:
        """Note that `count` jobs were finished by `now` (monotonic seconds)."""
        if count:
            self._within_span.add(count, now)
            self._within_patience.add(count, now)

    def size(self, now: float) -> int:
        return min(self._within_span.count(now), LARGEST)

    def kept(self, now: float) -> int:
        """How many jobs that have not started may go on waiting."""
        return self._within_patience.count(now)


class Capacity:
    """The slots of one runner, and the jobs claimed ahead. Used by the control loop's thread."""

    def __init__(self, concurrency: int) -> None:
        self.prefetch = Prefetch()
        self._concurrency = concurrency

    def room(self, unfinished: int, now: float, *, most: int = LARGEST) -> int:
        """How many more jobs to claim: the capacity less the jobs that are not finished.

        The capacity is concurrency + prefetch, capped at `most`, but never below concurrency. One claim asks for at
        most half of it (or the concurrency, if that is larger), so that one half runs while the other is claimed.
        """
        capacity = self._concurrency + self.prefetch.size(now)
        if capacity > most:
            capacity = max(most, self._concurrency)
        return max(min(capacity - unfinished, max(self._concurrency, capacity // 2)), 0)

    def surplus(self, unfinished: int, now: float) -> int:
        return max(unfinished - self._concurrency - self.prefetch.kept(now), 0)


KNOWN_FOR = 1.0
"""Seconds for which the jobs of a queue are assumed to need the same runners as those last claimed from it."""

MOST_QUEUES = 10_000
"""Queues that are remembered."""

Free = Mapping[str, int]
"""Room for more jobs, by the name of the runner."""


class Need(NamedTuple):
    runners: set[str]
    until: float
    """When this is forgotten, in monotonic seconds."""

    def room(self, free: Free) -> int:
        return min(free[runner] for runner in self.runners)


class Kinds:
    """For each queue, the runners that its last claimed jobs needed. Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, Need] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """How many jobs to claim from these queues in one statement: whichever runners they need, there is room."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free.values()))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        return names if all(free.values()) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note the jobs claimed from these queues, in this order. is_full: the claim may not have reached the last."""
        if len(self._needs) > MOST_QUEUES:
            self._needs.clear()
        kinds: dict[str, set[str]] = {}
        for queue_name, task in {(job.queue_name, job.task) for job in jobs}:
            kinds.setdefault(queue_name, set()).add(registry.runner_of(task))
        for name in names[: names.index(jobs[-1].queue_name)] if is_full and jobs else names:
            self._needs.pop(name, None)
        for name, runners in kinds.items():
            self._needs[name] = Need(runners, now + KNOWN_FOR)

    def _room(self, name: str, free: Free, now: float) -> int:
        need = self._needs.get(name)
        return max(free.values()) if need is None or need.until <= now else need.room(free)


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
