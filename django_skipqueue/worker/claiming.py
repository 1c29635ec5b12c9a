"""Decides when a worker claims, how many jobs, and from which positions of which queues.

Pure: callers pass the time, in monotonic seconds, and the results of claims.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from ..events import logs
from ..jobs.registry import RUNNER_NAMES, THREADS, registry
from ..values.counting import BatchSize
from ..values.records import ClaimedJob, QueuePosition
from .capacity import KNOWN_FOR, LARGEST, Capacity, ClaimCursor, Free, Kinds, pause_after
from .options import WorkerOptions
from .protocol import Standby

SEARCHED = 5_000
"""Queues that one search finds, at most. The next search continues after them."""

LONGEST_SEARCH_PAUSE = 60.0
"""Seconds until the next search for queues after a failed one, at most. The time doubles with each failure."""

FEW = 100
"""Queues that every claim may search, at 5 µs each. A claim searches more only if it has room for more jobs."""

MOST_SIZE = 64_000_000
"""Characters of arguments to hold at once, unless the jobs that run have more."""

LARGE_CLAIM = 500_000
"""A claim that returned this many characters of arguments may have stopped at its size limit, with more jobs left. The
text may have an eighth of the bytes that are stored."""


class Search(Protocol):
    def __call__(self, *, after: str, limit: int) -> list[str]:
        """Their names in alphabetical order: at most `limit` of those that come after the name `after`."""


Holds = Callable[[Callable[[str], bool]], int]
"""Counts the unfinished jobs that the worker has of the queues whose names are meant."""


class Claim(NamedTuple):
    names: Sequence[str]
    """The names of the queues."""
    limit: int
    after: Mapping[str, QueuePosition]
    """Position to search from, by queue. A queue without one is searched from its front."""


class ClaimPolicy:
    """Used by the control loop's thread."""

    def __init__(self, options: WorkerOptions, standby: Standby | None = None, holds: Holds = lambda _: 0) -> None:
        self.queue_names = list(options.queue_names)
        """The queues to claim from, in this order: those given by --queues, or those in which a search found jobs."""
        self.capacities = {runner: Capacity(options.concurrency) for runner in RUNNER_NAMES}
        self.lost: Claim | None = None
        """The last claim, if it timed out: find the positions of its jobs before the next claim."""
        self._cursor = ClaimCursor()
        self._standby = standby or Standby()
        self._hanging = self._standby.hanging_queues
        self._holds = holds
        self._slots = options.concurrency
        self._room_chosen = LARGEST  # jobs to claim from the queues that were chosen last
        self._left_others_out = False  # whether these were hanging ones alone
        self._is_drain = options.drain
        self._look_at = 0.0
        self._is_idle = False  # whether the next look is only in case that a notification was lost
        self._owes_front = True  # whether a job may have come in before the positions
        self._was_called = False  # whether a notification has ended the rest
        self._most = LARGEST  # jobs to hold, by the size of the last ones
        self._kinds = Kinds()
        self.free: Free = dict.fromkeys(RUNNER_NAMES, 1)
        """Room of each runner at the last call of `room`."""
        self._batch_size = BatchSize()
        self._head_batch_size = BatchSize()
        self._listed = bool(options.queue_names)
        self._serves = options.serves
        self._poll_interval = options.poll_interval
        self._next_search = 0.0
        self._search_pause = 0.0  # until the next search, if the last one failed
        self._searched_to = ""  # the name after which the next search continues

    @property
    def next_look(self) -> float:
        """When to claim, even if no outcome is to be written. While the supervisor watches, it calls."""
        return max(self._look_at, self._standby.watched_until) if self._is_idle else self._look_at

    def room(
        self, unfinished: Mapping[str, int], coming: int, now: float, *, unresponsive: Collection[str] = ()
    ) -> int:
        """How many more jobs to claim, beside the `unfinished` of each runner and the `coming` ones already claimed.

        unresponsive: the runners that do not begin the jobs they have.
        """
        if registry.uses_threads_alone:
            return self.capacities[THREADS].room(unfinished[THREADS] + coming, now, most=self._most)
        self.free = {
            runner: 0 if runner in unresponsive else capacity.room(unfinished[runner] + coming, now, most=self._most)
            for runner, capacity in self.capacities.items()
        }
        return self._kinds.room(self.queue_names[:FEW], self.free, now) if any(self.free.values()) else 0

    def finished(self, counts: Mapping[str, int], now: float) -> None:
        for runner, count in counts.items():
            self.capacities[runner].prefetch.finished(count, now)

    def surplus(self, unfinished: Mapping[str, int], finished: Mapping[str, int], now: float) -> dict[str, int]:
        """How many of the jobs that wait in each runner would wait too long. `finished` ones count as progress."""
        return {
            runner: capacity.surplus(unfinished[runner] - finished[runner], now)
            for runner, capacity in self.capacities.items()
        }

    def choose_queues(self, search: Search, clock: Callable[[], float], room: int) -> list[str]:
        """The queues to claim up to `room` jobs from. Without --queues: some that have jobs, in turn."""
        now = clock()
        if not self._listed and self._next_search <= now and not self._was_called:
            self._search(search, clock)
        self._was_called = False
        names = self.queue_names
        if not self._listed:
            most = max(room, FEW)
            turn = most if len(names) > most else 1
            self.queue_names = names[turn:] + names[:turn]
            names = names[:most]
        return self._spare(names if registry.uses_threads_alone else self._kinds.with_room(names, self.free, now), now)

    def gave_up(self, job: ClaimedJob, started: float, now: float) -> None:
        """Note that the attempt of this job was given up as stuck: its queue may hang."""
        self._hanging.note(job.queue_name, now - started, now)

    def _spare(self, names: list[str], now: float) -> list[str]:
        """Spare half of the slots for the queues that do not hang.

        The hanging ones have the other half together, and a claim of their own. A claim of the others follows it.
        """
        self._room_chosen, left_others_out, self._left_others_out = LARGEST, self._left_others_out, False
        if self._hanging.is_empty(now) or not self._has_several():
            return names
        hang = partial(self._hanging.hangs, now=now, slots=self._slots)
        hanging, others = [name for name in names if hang(name)], [name for name in names if not hang(name)]
        room = max(self._slots // 2, 1) - self._holds(hang) if hanging else 0
        if room <= 0 or (left_others_out and others):
            return others
        self._room_chosen, self._left_others_out = room, bool(others)
        return hanging

    def _has_several(self) -> bool:
        """Whether this worker serves more than one queue, as far as it knows."""
        names = set(self.queue_names)
        if not self._listed:
            names.update(filter(self._serves, (task.options.queue_name for task in registry)))
        return len(names) > 1

    def _search(self, search: Search, clock: Callable[[], float]) -> None:
        """Find the queues that have jobs, and shuffle them, so that workers started together begin with different ones.

        If one search does not find all, the next comes soon and continues after the last name.
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
        self.queue_names = [name for name in names if self._serves(name)]

    def _put_off_search(self, now: float) -> None:
        """Prepare for a failed search: serve the known queues, at first those of the registered tasks."""
        self._search_pause = min(max(2 * self._search_pause, self._poll_interval), LONGEST_SEARCH_PAUSE)
        self._next_search = now + self._search_pause
        if not self.queue_names:
            self.queue_names = sorted(filter(self._serves, {task.options.queue_name for task in registry}))

    def after(self, names: Sequence[str], now: float, *, admitting: bool = False) -> Mapping[str, QueuePosition]:
        """The position to claim from, by queue. A queue without one is searched from its front.

        admitting: jobs are admitted right before the claim, and most of them stand before the positions.
        """
        return {} if len(self.queue_names) > len(names) >= FEW else self._cursor.start(now, from_front=admitting)

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
        """Note the jobs of a claim, and set the time of the next. Returns whether all queues were found empty."""
        from_front = not after
        (self._head_batch_size if from_front else self._batch_size).succeeded()
        self._cursor.claimed(jobs, after=after, took=ended - started, now=ended)
        size = sum([len(job.args) + len(job.kwargs) for job in jobs])
        if jobs:
            self._most = MOST_SIZE * len(jobs) // size
        is_full = len(jobs) == room or size >= LARGE_CLAIM
        if not registry.uses_threads_alone:
            self._kinds.note(names, jobs, is_full=is_full, now=ended)
        if is_full or self._left_others_out:
            self._look_again(ended)
        elif len(names) >= max(room, FEW) and not self._listed:  # other queues may have jobs
            self._forget(names, ended)
            self._look_again(ended)
            return False
        else:
            self._rest(names, from_front, ended)
        return from_front and not jobs

    def _look_again(self, at: float) -> None:
        self._look_at = at
        self._is_idle = False

    def _rest(self, names: Sequence[str], from_front: bool, now: float) -> None:
        """Set the time of the next claim after one that left slots free: soon, if it may have passed over jobs."""
        self._owes_front = self._owes_front and not from_front
        self._look_at = now + self._poll_interval
        self._is_idle = not self._is_drain
        if from_front and self._searched_to:
            self._look_again(self._next_search)
        elif self._owes_front or (not from_front and not self._is_watched(now)):
            self._look_again(min(self._look_at, self._cursor.due_at))
        if len(names) < len(self.queue_names):  # the other queues were skipped
            self._look_again(min(self._look_at, now + KNOWN_FOR))

    def _is_watched(self, now: float) -> bool:
        return not self._is_drain and self._standby.watched_until > now

    def limit(self, room: int, after: Mapping[str, QueuePosition]) -> int:
        return min(room, self._room_chosen, (self._batch_size if after else self._head_batch_size).rows)

    def failed(self, claim: Claim, *, timed_out: bool, now: float) -> None:
        """Note that a claim failed. timed_out: the search for a first job took too long, or jobs are too large."""
        (self._batch_size if claim.after else self._head_batch_size).failed(claim.limit)
        if timed_out and (claim.after or not self._cursor.look_failed(now)):
            self.lost = claim

    def resume_from(self, found: Sequence[tuple[str, int | None, QueuePosition]], now: float) -> None:
        """Note the positions of the first jobs for the lost claim, and claim from these positions.

        If the lost claim asked for one job, from the very position found, the job itself is too large. The next claim
        skips it.
        """
        assert self.lost is not None  # noqa: S101 (for the type checker: called only after a lost claim)
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
        """Remove these empty queues. The next search finds them again once they have jobs."""
        empty = set(names)
        self.queue_names = [name for name in self.queue_names if name not in empty]
        if not self.queue_names:
            self._next_search = now

    def start_over(self) -> None:
        """Claim at once, from the front: the result of the last claim is unknown, and notifications may be lost.

        If the last search for queues failed, the next search comes at its time.
        """
        self._look_again(0.0)
        self._owes_front = True
        self._was_called = False
        if not self._search_pause:
            self._next_search = 0.0
        self._cursor.start_over()

    def look_at(self, time: float) -> None:
        self._look_again(time)
        self._was_called = False
        self._next_search = time

    def called(self, queue_name: str) -> None:
        """Claim at once from this queue, or search for queues and claim, if the name is empty."""
        if queue_name:
            self.queues_notified({queue_name})
        else:
            self.start_over()

    def queues_notified(self, queue_names: set[str]) -> None:
        if not queue_names:
            return
        if not self._listed:
            added = sorted(queue_names.difference(self.queue_names))
            self.queue_names = [name for name in added if self._serves(name)] + self.queue_names
        if queue_names.intersection(self.queue_names):
            self._was_called = self._is_idle and self._standby.watched_until > 0.0
            self._look_again(0.0)
            self._owes_front = True
