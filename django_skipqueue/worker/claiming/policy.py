"""When a worker claims, how many jobs, and from where.

Pure: it is told the time, in monotonic seconds, and what its claims brought.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...events import logs
from ...runtime.worker_options import WorkerOptions
from ...tasks.registry import RUNNER_NAMES, THREADS, registry
from ...values.records import ClaimedJob, QueuePosition
from ..batch_size import BatchSize
from .capacity import Capacity
from .cursor import ClaimCursor, pause_after
from .kinds import KNOWN_FOR, Free, Kinds
from .prefetch import LARGEST

SEARCHED = 5_000
"""Queues that one search finds at most; the next one goes on after them."""

LONGEST_SEARCH_PAUSE = 60.0
"""Seconds after which queues are searched for again where the last search failed: twice as long each time."""

FEW = 100
"""Queues that a claim can look at whatever it brings, 5 µs each. Of more, it looks at no more than it has room for."""


MOST_SIZE = 64_000_000
"""Characters of arguments to hold at once, unless the jobs that run have more."""

LARGE_CLAIM = 500_000
"""Characters of arguments with which a claim may have stopped because of them, and not because there was no more. As
text they may have an eighth of the bytes that are stored."""


class Search(Protocol):
    """Finds the queues that have jobs."""

    def __call__(self, *, after: str, limit: int) -> list[str]:
        """Their names in alphabetical order: at most `limit` of those that come after the name `after`."""


class Claim(NamedTuple):
    """What one claim asks for."""

    names: Sequence[str]
    """Of the queues."""
    limit: int
    after: Mapping[str, QueuePosition]
    """From where each queue is looked at; nothing: from its front."""


class ClaimPolicy:
    """Used by the control loop's thread."""

    def __init__(self, options: WorkerOptions) -> None:
        self.queue_names = list(options.queue_names)
        """Where to claim from, in this order: as listed, or where jobs were found."""
        self.next_look = 0.0
        """When to claim although no outcome takes the worker to the database."""
        self.capacities = {runner: Capacity(options.concurrency) for runner in RUNNER_NAMES}
        self.lost: Claim | None = None
        """The last claim, where it got no answer in time: find out first where the jobs are that it has asked for."""
        self._cursor = ClaimCursor()
        self._most = LARGEST  # to hold, as large as they have been of late
        self._kinds = Kinds()
        self.free: Free = dict.fromkeys(RUNNER_NAMES, 1)
        """How much room each runner had when `room` was last asked."""
        self._batch_size = BatchSize()
        self._head_batch_size = BatchSize()
        self._listed = bool(options.queue_names)
        self._poll_interval = options.poll_interval
        self._next_search = 0.0
        self._search_pause = 0.0  # until the next search, where the last one failed
        self._searched_to = ""  # the name after which the next search goes on

    def room(self, unfinished: Mapping[str, int], coming: int, now: float) -> int:
        """How many more jobs to claim beside those that each runner has not finished, and those that are coming."""
        if registry.uses_threads_alone:
            return self.capacities[THREADS].room(unfinished[THREADS] + coming, now, most=self._most)
        self.free = {
            runner: capacity.room(unfinished[runner] + coming, now, most=self._most)
            for runner, capacity in self.capacities.items()
        }
        return self._kinds.room(self.queue_names[:FEW], self.free, now) if any(self.free.values()) else 0

    def finished(self, counts: Mapping[str, int], now: float) -> None:
        """Note that each runner has finished so many jobs."""
        for runner, count in counts.items():
            self.capacities[runner].prefetch.finished(count, now)

    def surplus(self, unfinished: Mapping[str, int], finished: Mapping[str, int], now: float) -> dict[str, int]:
        """How many of the jobs that wait in each runner would wait too long; those that finish count as progress."""
        return {
            runner: capacity.surplus(unfinished[runner] - finished[runner], now)
            for runner, capacity in self.capacities.items()
        }

    def choose_queues(self, search: Search, clock: Callable[[], float], room: int) -> list[str]:
        """The queues to claim up to `room` jobs from. Where none were listed: some that have jobs, others each time."""
        now = clock()
        if not self._listed and self._next_search <= now:
            self._search(search, clock)
        names = self.queue_names
        if not self._listed:
            most = max(room, FEW)
            turn = most if len(names) > most else 1
            self.queue_names = names[turn:] + names[:turn]
            names = names[:most]
        return names if registry.uses_threads_alone else self._kinds.with_room(names, self.free, now)

    def _search(self, search: Search, clock: Callable[[], float]) -> None:
        """Find queues that have jobs, and put them in any order: workers that start together begin in different ones.

        Where one search does not find them all, the next comes soon, and goes on from there.
        """
        started = clock()
        goes_on = self._searched_to
        self._put_off_search(started)
        names = search(after=goes_on, limit=SEARCHED) or (search(after="", limit=SEARCHED) if goes_on else [])
        self._search_pause = 0.0
        self._searched_to = names[-1] if len(names) == SEARCHED else ""
        now = clock()
        rest = pause_after(now - started)
        self._next_search = now + (rest if goes_on or self._searched_to else max(rest, self._poll_interval))
        random.shuffle(names)
        self.queue_names = names

    def _put_off_search(self, now: float) -> None:
        """For the case that it fails: serve the queues that are known, at first those of this process's tasks."""
        self._search_pause = min(max(2 * self._search_pause, self._poll_interval), LONGEST_SEARCH_PAUSE)
        self._next_search = now + self._search_pause
        self.queue_names = self.queue_names or sorted({task.options.queue_name for task in registry})

    def after(self, names: Sequence[str], now: float) -> Mapping[str, QueuePosition]:
        """The positions after which to look for jobs now in these queues."""
        return {} if len(self.queue_names) > len(names) >= FEW else self._cursor.start(now)

    def claimed(
        self,
        jobs: Sequence[ClaimedJob],
        *,
        room: int,
        names: Sequence[str],
        after: Mapping[str, QueuePosition],
        started: float,
        ended: float,
    ) -> bool:
        """Note what a claim from these queues brought, and when to make the next; whether it found all queues empty."""
        from_front = not after
        (self._head_batch_size if from_front else self._batch_size).succeeded()
        self._cursor.claimed(jobs, after=after, took=ended - started, now=ended)
        size = sum([len(job.args) + len(job.kwargs) for job in jobs])
        if jobs:
            self._most = MOST_SIZE * len(jobs) // size
        is_full = len(jobs) == room or size >= LARGE_CLAIM
        if not registry.uses_threads_alone:
            self._kinds.note(names, jobs, is_full=is_full, now=ended)
        if is_full:
            self.next_look = ended
        elif len(names) >= max(room, FEW) and not self._listed:  # there may be others
            self._forget(names, ended)
            self.next_look = ended
            return False
        elif from_front:
            self.next_look = self._next_search if self._searched_to else ended + self._poll_interval
        else:
            self.next_look = min(ended + self._poll_interval, self._cursor.due_at)
        if len(names) < len(self.queue_names):  # the others were passed over
            self.next_look = min(self.next_look, ended + KNOWN_FOR)
        return from_front and not jobs

    def limit(self, room: int, after: Mapping[str, QueuePosition]) -> int:
        """How many jobs to claim after these positions, where there is so much room."""
        return min(room, (self._batch_size if after else self._head_batch_size).rows)

    def failed(self, claim: Claim, *, timed_out: bool, now: float) -> None:
        """Note that a claim got no answer. timed_out: the way to the first job was too long, or the jobs too large."""
        (self._batch_size if claim.after else self._head_batch_size).failed(claim.limit)
        if timed_out and (claim.after or not self._cursor.look_failed(now)):
            self.lost = claim

    def resume_from(self, found: Sequence[tuple[str, int | None, QueuePosition]], now: float) -> None:
        """Note where the first jobs are that the lost claim has asked for, and claim from there.

        If it asked for one alone, and knew already where that is, the job itself is too much: it is left where it is.
        """
        assert self.lost is not None  # noqa: S101 (for the type checker: only then is a place looked for)
        lost, self.lost = self.lost, None
        positions = {
            name: lost.after.get(name, position) if job_id is None else position._replace(id=job_id - 1)
            for name, job_id, position in found
        }
        first = next(((name, job_id, position) for name, job_id, position in found if job_id is not None), None)
        if first and lost.limit == 1 and positions[first[0]] == lost.after.get(first[0]):
            name, job_id, positions[name] = first
            logs.job_not_claimed(job_id, name)
        self._cursor.move_to(positions, now)

    def _forget(self, names: Sequence[str], now: float) -> None:
        """These queues have no jobs any more. Look at the others; the next search finds those that get some."""
        empty = set(names)
        self.queue_names = [name for name in self.queue_names if name not in empty]
        if not self.queue_names:
            self._next_search = now

    def start_over(self) -> None:
        """Claim at once, from the front: nobody knows what came of the last claim, or which queues got jobs since.

        Where it was the search for queues that failed, the next one comes when it is due.
        """
        self.next_look = 0.0
        if not self._search_pause:
            self._next_search = 0.0
        self._cursor.start_over()

    def look_at(self, time: float) -> None:
        """Search and claim again at this time."""
        self.next_look = self._next_search = time

    def queues_notified(self, queue_names: set[str]) -> None:
        """Claim at once if jobs were added to queues that this worker serves."""
        if not queue_names:
            return
        if not self._listed:
            self.queue_names = sorted(queue_names.difference(self.queue_names)) + self.queue_names
        if queue_names.intersection(self.queue_names):
            self.next_look = 0.0
