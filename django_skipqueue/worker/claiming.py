"""Decides what a worker does next: apply a result, settle, claim; how many jobs, from which positions of which queues.

`next_plan` is a pure function. `ClaimPolicy` knows how many jobs to claim, and from where; its callers pass the time,
in monotonic seconds, and the results of claims. `Capacity` counts the slots of one runner, `ClaimCursor` the positions.

The control loop calls `next_plan` before each exchange and before each sleep. An exchange both settles and claims: to
claim in the round trip of a settle costs nothing more.

A worker claims more jobs than it has free slots: the number that it finished in the last 0.2 s. Half of these jobs
run while the worker claims the other half. So short jobs come in batches of hundreds, which share a round trip. Long
jobs are not claimed ahead, so that no job waits behind a long job while another worker is idle. The worker keeps as
many waiting jobs as it finished in the last half second, and releases the rest: the jobs of a batch may be longer than
the jobs before them.

Invariant: jobs of one runner (threads for `def` tasks, an event loop for `async def` tasks) take no slot of the other
runner, and no job waits here for much longer than half a second while another worker is idle.

A worker learns only after the claim which runner a job needs. So while a runner is full, the worker skips the queues
whose last jobs needed this runner, and tries these queues again every second. The worker releases a claimed job whose
runner has no room. Within a queue, all jobs stay in their order.

A worker also remembers how far it has claimed in each queue, so that the next claim need not start at the front. While
any old snapshot is open, PostgreSQL keeps the index entries of claimed jobs, and a claim from the front of a queue
walks over all these entries: 0.3 s for a million. So a claim starts where the last completed claim ended. A job may
come in before this position (by a late commit, a higher priority or a release): a claim from the front finds the job.
After a claim from the front that took 1 ms, the next comes after 19 ms; after one that took 40 ms or more, after 0.8 s.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

from ..events import logs
from ..jobs.registry import RUNNER_NAMES, THREADS, registry
from ..values.counting import BatchSize, Recent
from ..values.records import NEVER, QUEUE_HEAD, ClaimedJob, QueuePosition
from .options import WorkerOptions
from .protocol import SharedCounts

Half = Literal["settle", "claim"]


class Work(NamedTuple):
    """All that the plan depends on. Times are monotonic seconds; `NEVER`: there is no reason."""

    has_result: bool = False
    """Whether the result of the last exchange has not been applied."""
    has_finished: bool = False
    """Whether attempts have finished whose outcomes were never sent."""
    outcomes_at: float = NEVER
    """When outcomes can be sent: 0 if some wait; later for outcomes of locked rows, or that took too long."""
    admission_at: float = NEVER
    """When a part wants to admit jobs: see `worker.in_exchange`."""
    claim_at: float = NEVER
    """When to look for jobs, even if no outcome is to be sent."""
    room: int = 0
    """How many jobs there is room for."""
    alone: Sequence[Half] = ()
    """After a failure: which halves are still to be sent alone, in this order."""
    open_at: float = 0.0
    """When the connection may be used again after it broke."""


@dataclass(frozen=True, slots=True)
class Plan:
    at: float
    """When there is something to do. If that is in the future, there is nothing to do now."""
    applies: bool = False
    """Whether to apply the result of the last exchange, and to plan again: it changes what there is room for."""
    settles: bool = False
    """Whether to send outcomes, also outcomes that come after the plan is made."""
    claims: int = 0
    """How many jobs to claim, at most."""
    settles_alone: bool = False
    """Whether to claim nothing if there are outcomes to send."""

    @property
    def sends(self) -> bool:
        """Whether an exchange is due."""
        return self.settles or self.claims > 0


def next_plan(work: Work, now: float) -> Plan:
    at = min(work.outcomes_at, work.admission_at, work.claim_at if work.room else NEVER)
    if work.has_result or work.has_finished:
        at = 0.0
    at = max(at, work.open_at)
    if at > now:
        return Plan(at)
    if work.has_result and not work.has_finished:
        return Plan(at, applies=True)  # otherwise it is applied while the database works
    if work.room and work.alone and work.alone[0] == "claim":
        return Plan(at, claims=work.room)
    return Plan(at, settles=True, claims=work.room, settles_alone=bool(work.alone))


MOST_QUEUES_FOUND = 5_000
"""Queues that one search finds, at most. The next search continues after these queues."""

LONGEST_SEARCH_PAUSE = 60.0
"""Seconds until the next search for queues after a failed one, at most. The time doubles with each failure."""

FEW_QUEUES = 100
"""Queues that every claim may search, at 5 µs each. A claim searches more only if it has room for more jobs."""

MOST_CHARACTERS_HELD = 64_000_000
"""Characters of arguments that a worker holds, unless the jobs that run have more."""

LARGE_CLAIM = 500_000
"""If a claim returned this many characters of arguments, it may have stopped at its size limit, with jobs left. The
text may have an eighth of the bytes that are stored."""


class QueueSearch(Protocol):
    def __call__(self, *, after: str, limit: int) -> list[str]:
        """Find the queues with jobs. Returns at most `limit` names after the name `after`, in alphabetical order."""


Holds = Callable[[Callable[[str], bool]], int]
"""Counts the unfinished jobs that the worker has of the queues for whose names the given function is true."""


class Claim(NamedTuple):
    names: Sequence[str]
    """The names of the queues."""
    limit: int
    after: Mapping[str, QueuePosition]
    """Position to search from, by queue. A queue without one is searched from its front."""


class ClaimPolicy:
    """Used by the control loop's thread."""

    def __init__(self, options: WorkerOptions, shared: SharedCounts | None = None, holds: Holds = lambda _: 0) -> None:
        self.queue_names = list(options.queue_names)
        """The queues to claim from, in this order: the queues of --queues, or the queues found to have jobs."""
        self.capacities = {runner: Capacity(options.concurrency) for runner in RUNNER_NAMES}
        self.lost: Claim | None = None
        """The last claim, if it timed out: find the positions of its jobs before the next claim."""
        self.cursor = ClaimCursor()
        self._shared = shared or SharedCounts()
        self.hanging = self._shared.hanging_queues
        self._holds = holds
        self._slots = options.concurrency
        self._room_chosen = MOST_PREFETCHED  # jobs to claim from the queues that were chosen last
        self._left_others_out = False  # whether only hanging queues were chosen last, although there are others
        self._is_drain = options.drain
        self._check_at = 0.0
        self._is_idle = False  # whether the next check is only in case that a notification was lost
        self._owes_front = True  # whether a job may have come in before the positions
        self._was_called = False  # whether a notification has ended the rest
        self._most = MOST_PREFETCHED  # jobs to hold, by the size of the last ones
        self._kinds = NeededRunners()
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
    def next_check(self) -> float:
        """When to claim, even if no outcome is to be written. While the supervisor watches, it calls."""
        return max(self._check_at, self._shared.watched_until) if self._is_idle else self._check_at

    def room(
        self, unfinished: Mapping[str, int], coming: int, now: float, *, unresponsive: Collection[str] = ()
    ) -> int:
        """How many jobs to claim: each runner has `unfinished` jobs, and `coming` jobs were claimed that no runner has.

        unresponsive: the runners that do not begin the jobs they have.
        """
        if registry.uses_threads_alone:
            return self.capacities[THREADS].room(unfinished[THREADS] + coming, now, most=self._most)
        self.free = {
            runner: 0 if runner in unresponsive else capacity.room(unfinished[runner] + coming, now, most=self._most)
            for runner, capacity in self.capacities.items()
        }
        return self._kinds.room(self.queue_names[:FEW_QUEUES], self.free, now) if any(self.free.values()) else 0

    def surplus(self, unfinished: Mapping[str, int], finished: Mapping[str, int], now: float) -> dict[str, int]:
        """How many of the jobs that wait in each runner would wait too long.

        finished: the finished jobs of each runner, which count as progress.
        """
        return {
            runner: capacity.surplus(unfinished[runner] - finished[runner], now)
            for runner, capacity in self.capacities.items()
        }

    def choose_queues(self, search: QueueSearch, clock: Callable[[], float], room: int) -> list[str]:
        """The queues to claim up to `room` jobs from. Without --queues: some that have jobs, in turn."""
        now = clock()
        if not self._listed and self._next_search <= now and not self._was_called:
            self._search(search, clock)
        self._was_called = False
        names = self.queue_names
        if not self._listed:
            most = max(room, FEW_QUEUES)
            turn = most if len(names) > most else 1
            self.queue_names = names[turn:] + names[:turn]
            names = names[:most]
        return self._spare(names if registry.uses_threads_alone else self._kinds.with_room(names, self.free, now), now)

    def gave_up(self, job: ClaimedJob, started: float, now: float) -> None:
        """Note that the attempt of this job was given up as stuck: its queue may hang."""
        self.hanging.note(job.queue_name, now - started, now)

    def _spare(self, names: list[str], now: float) -> list[str]:
        """Choose from these queues, and spare half of the slots for the queues that do not hang.

        All hanging queues share the other half of the slots, and a claim of their own. A claim from the queues that do
        not hang follows it.
        """
        self._room_chosen, left_others_out, self._left_others_out = MOST_PREFETCHED, self._left_others_out, False
        if self.hanging.is_empty(now) or not self._has_several():
            return names
        hang = partial(self.hanging.hangs, now=now, slots=self._slots)
        hanging, others = [name for name in names if hang(name)], [name for name in names if not hang(name)]
        room = max(self._slots // 2, 1) - self._holds(hang) if hanging else 0
        if room <= 0 or (left_others_out and others):
            return others
        self._room_chosen, self._left_others_out = room, bool(others)
        return hanging

    def _has_several(self) -> bool:
        names = set(self.queue_names)
        if not self._listed:
            names.update(filter(self._serves, (task.options.queue_name for task in registry)))
        return len(names) > 1

    def _search(self, search: QueueSearch, clock: Callable[[], float]) -> None:
        """Find the queues that have jobs, and shuffle them, so that workers started together begin with different ones.

        If one search does not find all, the next comes soon and continues after the last name.
        """
        started = clock()
        goes_on = self._searched_to
        # In case that the search fails: until the next search, serve the known queues, or else the queues of all tasks.
        self._search_pause = min(max(2 * self._search_pause, self._poll_interval), LONGEST_SEARCH_PAUSE)
        self._next_search = started + self._search_pause
        if not self.queue_names:
            self.queue_names = sorted(filter(self._serves, {task.options.queue_name for task in registry}))
        names = search(after=goes_on, limit=MOST_QUEUES_FOUND) or (
            search(after="", limit=MOST_QUEUES_FOUND) if goes_on else []
        )
        self._search_pause = 0.0
        self._searched_to = names[-1] if len(names) == MOST_QUEUES_FOUND else ""
        now = clock()
        rest = pause_after(now - started)
        self._next_search = now + (rest if goes_on or self._searched_to else max(rest, self._poll_interval))
        random.shuffle(names)
        self.queue_names = [name for name in names if self._serves(name)]

    def after(self, names: Sequence[str], now: float, *, admitting: bool = False) -> Mapping[str, QueuePosition]:
        """The position to claim from, by queue. A queue without one is searched from its front.

        admitting: jobs are admitted right before the claim, and most of these jobs are before the positions.
        """
        return {} if len(self.queue_names) > len(names) >= FEW_QUEUES else self.cursor.start(now, from_front=admitting)

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
        """Note the jobs of a claim, and set the time of the next claim. Returns whether all queues were found empty."""
        from_front = not after
        (self._head_batch_size if from_front else self._batch_size).succeeded()
        self.cursor.claimed(jobs, after=after, took=ended - started, now=ended)
        size = sum([len(job.args) + len(job.kwargs) for job in jobs])
        if jobs:
            self._most = MOST_CHARACTERS_HELD * len(jobs) // size
        is_full = len(jobs) == room or size >= LARGE_CLAIM
        if not registry.uses_threads_alone:
            self._kinds.note(names, jobs, is_full=is_full, now=ended)
        if is_full or self._left_others_out:
            self._check_at, self._is_idle = ended, False
        elif len(names) >= max(room, FEW_QUEUES) and not self._listed:  # other queues may have jobs
            empty = set(names)  # the next search finds them again once they have jobs
            self.queue_names = [name for name in self.queue_names if name not in empty]
            if not self.queue_names:
                self._next_search = ended
            self._check_at, self._is_idle = ended, False
            return False
        else:
            self._rest(names, from_front, ended)
        return from_front and not jobs

    def _rest(self, names: Sequence[str], from_front: bool, now: float) -> None:
        """Set the time of the next claim after one that left slots free: soon, if it may have passed over jobs."""
        self._owes_front = self._owes_front and not from_front
        self._check_at = now + self._poll_interval
        self._is_idle = not self._is_drain
        if from_front and self._searched_to:
            self._check_at, self._is_idle = self._next_search, False
        elif self._owes_front or not (from_front or (self._shared.watched_until > now and not self._is_drain)):
            self._check_at, self._is_idle = min(self._check_at, self.cursor.due_at), False
        if len(names) < len(self.queue_names):  # the claim skipped some queues
            self._check_at, self._is_idle = min(self._check_at, now + RUNNERS_KNOWN_SECONDS), False

    def limit(self, room: int, after: Mapping[str, QueuePosition]) -> int:
        return min(room, self._room_chosen, (self._batch_size if after else self._head_batch_size).rows)

    def failed(self, claim: Claim, *, timed_out: bool, now: float) -> None:
        """Note that a claim failed. timed_out: the search for a first job took too long, or jobs are too large."""
        (self._batch_size if claim.after else self._head_batch_size).failed(claim.limit)
        if timed_out and (claim.after or not self.cursor.full_scan_failed(now)):
            self.lost = claim

    def resume_from(self, found: Sequence[tuple[str, int | None, QueuePosition]], now: float) -> None:
        """Note the positions of the first jobs for the lost claim, and claim from these positions.

        If the lost claim asked for one job, from exactly the position found, this job is too large, and the next claim
        skips the job.
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
        self.cursor.move_to(positions, now)

    def start_over(self) -> None:
        """Claim at once, from the front: the result of the last claim is unknown, and notifications may be lost.

        If the last search for queues failed, the next search comes at its time.
        """
        self._check_at, self._is_idle = 0.0, False
        self._owes_front = True
        self._was_called = False
        if not self._search_pause:
            self._next_search = 0.0
        self.cursor.start_over()

    def check_at(self, time: float) -> None:
        self._check_at, self._is_idle = time, False
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
            self._was_called = self._is_idle and self._shared.watched_until > 0.0
            self._check_at, self._is_idle = 0.0, False
            self._owes_front = True


PREFETCH_SECONDS = 0.2
"""Seconds of work to hold in advance."""

MOST_PREFETCHED = 4_000
"""Jobs held in advance, at most: after a crash of the worker, these jobs wait until a supervisor releases them."""

LONGEST_WAIT_AHEAD = 0.5
"""Seconds for which a job may wait here. Longer than `PREFETCH_SECONDS`, because another worker must claim a released
job again."""


class Capacity:
    """The slots of one runner, and the jobs claimed ahead. Used by the control loop's thread."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self.within_span = Recent(PREFETCH_SECONDS)
        self._within_wait = Recent(LONGEST_WAIT_AHEAD)

    def finished(self, count: int, now: float) -> None:
        if count:
            self.within_span.add(count, now)
            self._within_wait.add(count, now)

    def prefetch(self, now: float) -> int:
        """How many jobs to claim ahead of the free slots."""
        return min(self.within_span.count(now), MOST_PREFETCHED)

    def room(self, unfinished: int, now: float, *, most: int = MOST_PREFETCHED) -> int:
        """How many more jobs to claim: the capacity less the jobs that are not finished.

        The capacity is concurrency + prefetch, capped at `most`, but never below concurrency. One claim asks for at
        most half of the capacity (or the concurrency, if that is larger): one half runs while the other half is
        claimed.
        """
        capacity = self._concurrency + self.prefetch(now)
        if capacity > most:
            capacity = max(most, self._concurrency)
        return max(min(capacity - unfinished, max(self._concurrency, capacity // 2)), 0)

    def surplus(self, unfinished: int, now: float) -> int:
        """How many jobs that have not started would wait too long."""
        return max(unfinished - self._concurrency - self._within_wait.count(now), 0)


RUNNERS_KNOWN_SECONDS = 1.0
"""Seconds for which the jobs of a queue are assumed to need the runners of the jobs last claimed from the queue."""

MOST_QUEUES_REMEMBERED = 10_000
"""Queues that are remembered."""

Free = Mapping[str, int]
"""Room for more jobs, by the name of the runner."""


class RunnersOfQueue(NamedTuple):
    runners: set[str]
    until: float
    """When this is forgotten, in monotonic seconds."""


class NeededRunners:
    """For each queue, the runners that its last claimed jobs needed. Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, RunnersOfQueue] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """How many jobs to claim from these queues in one statement, so that all runners that they need have room."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free.values()))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        return names if all(free.values()) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note the jobs claimed from these queues, in this order. is_full: the claim may have left queues out."""
        if len(self._needs) > MOST_QUEUES_REMEMBERED:
            self._needs.clear()
        kinds: dict[str, set[str]] = {}
        for queue_name, task in {(job.queue_name, job.task) for job in jobs}:
            kinds.setdefault(queue_name, set()).add(registry.runner_of(task))
        for name in names[: names.index(jobs[-1].queue_name)] if is_full and jobs else names:
            self._needs.pop(name, None)
        for name, runners in kinds.items():
            self._needs[name] = RunnersOfQueue(runners, now + RUNNERS_KNOWN_SECONDS)

    def _room(self, name: str, free: Free, now: float) -> int:
        need = self._needs.get(name)
        if need is None or need.until <= now:
            return max(free.values())
        return min(free[runner] for runner in need.runners)


FULL_SCAN_SHARE = 1 / 20
"""The share of its time that a worker spends on claims from the front, unless `MAX_FULL_SCAN_PAUSE` demands more."""

MAX_FULL_SCAN_PAUSE = 0.8
"""Seconds between claims from the front, at most, whatever a claim costs: every job is found within about a second."""

CHEAP_FRONT_SECONDS = 0.005
"""Seconds. A claim from the front that takes less time may come more often, for jobs that were just admitted."""

FIRST_FRONT_PAUSE, LONGEST_FRONT_PAUSE = 4.0, 60.0
"""Seconds until the next claim from the front after one that timed out. The pause doubles with each timeout."""


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
        """Note the jobs of a claim after these positions, in order. took: the seconds that the claim took."""
        if not after:
            self._failures = 0
            # The walk to the first row: the seconds of later rows include updates.
            walk = min((job.claim_seconds for job in jobs), default=took)
            self.due_at = now + pause_after(walk)
            self._is_front_cheap = walk < CHEAP_FRONT_SECONDS
            self._positions = {}
        for name, last in {job.queue_name: job for job in jobs}.items():
            # A claim from the front, sent later than this one, may have found earlier jobs: keep its position.
            start = after.get(name, QUEUE_HEAD)
            if name not in self._positions or self._positions[name] >= start:
                self._positions[name] = max(last.position, start)  # a job that was just admitted may be before `start`

    def start_over(self) -> None:
        """Claim from the front at once, unless the last claim from the front failed."""
        if not self._failures:
            self.due_at = 0.0

    def full_scan_failed(self, now: float) -> bool:
        """Note that a claim from the front timed out. Returns whether a position is known to claim from meanwhile."""
        self._failures += 1
        self._is_front_cheap = False
        self.due_at = now + min(FIRST_FRONT_PAUSE * 2 ** (self._failures - 1), LONGEST_FRONT_PAUSE)
        return bool(self._positions)

    def move_to(self, positions: Mapping[str, QueuePosition], now: float) -> None:
        """Claim after these positions, and after the positions already known, until the next claim from the front."""
        self._positions.update(positions)
        self.due_at = max(self.due_at, now + MAX_FULL_SCAN_PAUSE)
