"""Decide what a worker does next: whether to settle and claim, how many jobs, and from which positions of which queues.

An exchange is a round trip to the database, which both settles and claims, because claiming in the same round trip
costs nothing more. The control loop calls `next_plan` before each exchange and before each sleep. `ClaimPolicy` decides
how many jobs to claim, and from where. `Capacity` counts the slots of one runner, and `ClaimCursor` remembers
positions. Callers pass the time, by the monotonic clock.

A runner runs jobs: one in threads, for `def` tasks, the other in an event loop, for `async def` tasks. Jobs of one
runner take no slot of the other runner.

A worker claims more jobs than it has free slots. It claims as many further jobs as it has finished in the last 0.2 s.
Half of these jobs run while the worker claims the other half. So short jobs are claimed in batches of hundreds, which
share a round trip. Long jobs are not claimed ahead, so that they do not wait while another worker is idle. If jobs take
longer than the jobs before them, the worker keeps only as many waiting jobs as it has finished in the last half second,
and releases all others.

A worker learns only after the claim which runner a job needs. So while a runner is full, the worker skips the queues
whose last jobs needed this runner, and tries these queues again every second. The worker releases a claimed job whose
runner has no room. Within a queue, all jobs stay in their order.

A worker also remembers how far it has claimed in each queue, so that the next claim need not start at the front of the
queue. While an old snapshot is open, PostgreSQL keeps the index entries of claimed jobs. A claim from the front walks
over all these entries, which takes 0.3 s for a million. So a claim starts where the last claim has ended. A job may
arrive before this position, for example with a higher priority. A claim from the front finds it. After a claim from the
front that took 1 ms, the next one comes after 19 ms; after one that took 40 ms or more, it comes after 0.8 s.
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
    """The state of the worker from which `next_plan` makes a plan. Times are by the monotonic clock."""

    has_result: bool = False
    """Whether the result of the last exchange still has to be applied."""
    has_finished: bool = False
    """Whether attempts have finished whose outcomes have not been sent yet."""
    outcomes_at: float = NEVER
    """When outcomes can be sent: 0 if outcomes wait; later if they failed because of locked rows or a timeout."""
    admission_at: float = NEVER
    """When a part wants to admit jobs: see `worker.in_exchange`."""
    claim_at: float = NEVER
    """When to claim jobs, even if there is no outcome to send."""
    room: int = 0
    """How many more jobs the worker has room for."""
    alone: Sequence[Half] = ()
    """After an exchange failed, the halves of it that must be sent separately, in this order."""
    open_at: float = 0.0
    """When the connection may be used again after it broke."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the worker does next, and when."""

    at: float
    """When to act. If this time is in the future, there is nothing to do now."""
    applies: bool = False
    """Whether to apply the result of the last exchange, and then to plan again, because the room has changed."""
    settles: bool = False
    """Whether to send outcomes, including outcomes of attempts that finish after the plan is made."""
    claims: int = 0
    """How many jobs to claim, at most."""
    settles_alone: bool = False
    """Whether an exchange that sends outcomes must not claim."""

    @property
    def sends(self) -> bool:
        """Whether an exchange is due."""
        return self.settles or self.claims > 0


def next_plan(work: Work, now: float) -> Plan:
    """Decide what the worker does next. This function has no side effects."""
    at = min(work.outcomes_at, work.admission_at, work.claim_at if work.room else NEVER)
    if work.has_result or work.has_finished:
        at = 0.0
    at = max(at, work.open_at)
    if at > now:
        return Plan(at)
    if work.has_result and not work.has_finished:
        return Plan(at, applies=True)  # if there are outcomes to send, it is applied while the database works
    if work.room and work.alone and work.alone[0] == "claim":
        return Plan(at, claims=work.room)
    return Plan(at, settles=True, claims=work.room, settles_alone=bool(work.alone))


MOST_QUEUES_FOUND = 5_000
"""The most queues that one search finds. The next search continues after these queues."""

LONGEST_SEARCH_PAUSE = 60.0
"""The most seconds between a failed search for queues and the next search. The time doubles with each failure."""

FEW_QUEUES = 100
"""How many queues every claim may search, at 5 µs each. A claim searches more queues only if it may claim more jobs."""

MOST_CHARACTERS_HELD = 64_000_000
"""The most characters of arguments that a worker holds, unless the running jobs alone have more."""

LARGE_CLAIM = 500_000
"""If a claim returned this many characters of arguments, it may have stopped at its size limit although there are more
jobs. The limit counts stored bytes, which may be eight times the number of characters."""


class QueueSearch(Protocol):
    def __call__(self, *, after: str, limit: int) -> list[str]:
        """Find queues with jobs: at most `limit` names, in alphabetical order, after the name `after`."""


Holds = Callable[[Callable[[str], bool]], int]
"""A function that counts the worker's unfinished jobs in the queues for whose names its argument returns True."""


class Claim(NamedTuple):
    """The parameters of one claim."""

    names: Sequence[str]
    """The names of the queues."""
    limit: int
    """The most jobs to claim."""
    after: Mapping[str, QueuePosition]
    """By queue, the position after which to search for jobs. A queue that is not here is searched from its front."""


class ClaimPolicy:
    """Decides how many jobs to claim, and from which queues. Used only by the control loop's thread."""

    def __init__(self, options: WorkerOptions, shared: SharedCounts | None = None, holds: Holds = lambda _: 0) -> None:
        self.queue_names = list(options.queue_names)
        """The queues to claim from, in this order: the queues in `--queues`, or else the queues that have jobs."""
        self.capacities = {runner: Capacity(options.concurrency) for runner in RUNNER_NAMES}
        self.lost: Claim | None = None
        """The last claim, if it timed out. Before the next claim, the positions of its jobs must be found."""
        self.cursor = ClaimCursor()
        self._shared = shared or SharedCounts()
        self.hanging = self._shared.hanging_queues
        self._holds = holds
        self._slots = options.concurrency
        self._room_in_chosen_queues = MOST_PREFETCHED  # the most jobs to claim from the chosen queues
        self._skipped_other_queues = False  # whether the last claim was from hanging queues, and skipped others
        self._is_drain = options.drain
        self._next_claim_at = 0.0
        self._is_idle = False  # whether the next claim is only needed if a notification was lost
        self._must_check_front = True  # whether a job may have arrived before the remembered positions
        self._was_called = False  # whether a notification has ended an idle wait
        self._most_held = MOST_PREFETCHED  # the most jobs to hold, given the size of the last jobs
        self._needed_runners = NeededRunners()
        self.free: Free = dict.fromkeys(RUNNER_NAMES, 1)
        """How many more jobs each runner had room for at the last call of `room`."""
        self._batch_size = BatchSize()  # of claims that start after a remembered position
        self._head_batch_size = BatchSize()  # of claims from the front
        self._has_fixed_queues = bool(options.queue_names)
        self._serves = options.serves
        self._poll_interval = options.poll_interval
        self._next_search = 0.0
        self._search_pause = 0.0  # until the next search, if the last one failed
        self._last_found_name = ""  # the name after which the next search continues

    @property
    def next_check(self) -> float:
        """When to claim, even if there is no outcome to write. An idle worker may wait for its supervisor's call."""
        return max(self._next_claim_at, self._shared.watched_until) if self._is_idle else self._next_claim_at

    def room(
        self, unfinished: Mapping[str, int], not_taken: int, now: float, *, unresponsive: Collection[str] = ()
    ) -> int:
        """Return how many jobs to claim.

        unfinished: the number of unfinished jobs that each runner has.
        not_taken: the number of claimed jobs that no runner has yet.
        unresponsive: the runners that do not begin their waiting jobs.
        """
        if registry.uses_threads_alone:
            return self.capacities[THREADS].room(unfinished[THREADS] + not_taken, now, most=self._most_held)
        most = self._most_held
        self.free = {
            runner: 0 if runner in unresponsive else capacity.room(unfinished[runner] + not_taken, now, most=most)
            for runner, capacity in self.capacities.items()
        }
        if not any(self.free.values()):
            return 0
        return self._needed_runners.room(self.queue_names[:FEW_QUEUES], self.free, now)

    def surplus(self, unfinished: Mapping[str, int], finished: Mapping[str, int], now: float) -> dict[str, int]:
        """Return for each runner how many jobs would have to wait too long for a slot, and should be released.

        finished: how many jobs of each runner have finished, and are still among the unfinished jobs.
        """
        return {
            runner: capacity.surplus(unfinished[runner] - finished[runner], now)
            for runner, capacity in self.capacities.items()
        }

    def choose_queues(self, search: QueueSearch, clock: Callable[[], float], room: int) -> list[str]:
        """Choose queues from which to claim up to `room` jobs. Without `--queues`, queues with jobs take turns."""
        now = clock()
        if not self._has_fixed_queues and self._next_search <= now and not self._was_called:
            self._search(search, clock)
        self._was_called = False
        names = self.queue_names
        if not self._has_fixed_queues:
            count = max(room, FEW_QUEUES)
            # If all queues take part in each claim, only the first queue moves to the end.
            first_of_next_turn = count if len(names) > count else 1
            self.queue_names = names[first_of_next_turn:] + names[:first_of_next_turn]
            names = names[:count]
        with_room = names if registry.uses_threads_alone else self._needed_runners.with_room(names, self.free, now)
        return self._reserve_slots(with_room, now)

    def gave_up(self, job: ClaimedJob, started: float, now: float) -> None:
        """Note that the attempt of this job was stuck, because other jobs of the same queue may hang too."""
        self.hanging.note(job.queue_name, now - started, now)

    def _reserve_slots(self, names: list[str], now: float) -> list[str]:
        """Choose the queues for the next claim, and reserve half of the slots for queues that do not hang.

        All hanging queues share the other half of the slots. A separate claim takes jobs from the hanging queues, and
        the claim after it takes jobs from the other queues.
        """
        skipped_other_queues, self._skipped_other_queues = self._skipped_other_queues, False
        self._room_in_chosen_queues = MOST_PREFETCHED
        if self.hanging.is_empty(now) or not self._has_several_queues():
            return names
        hangs = partial(self.hanging.hangs, now=now, slots=self._slots)
        hanging = [name for name in names if hangs(name)]
        others = [name for name in names if not hangs(name)]
        room = max(self._slots // 2, 1) - self._holds(hangs) if hanging else 0
        if room <= 0 or (skipped_other_queues and others):
            return others
        self._room_in_chosen_queues, self._skipped_other_queues = room, bool(others)
        return hanging

    def _has_several_queues(self) -> bool:
        names = set(self.queue_names)
        if not self._has_fixed_queues:
            names.update(filter(self._serves, (task.options.queue_name for task in registry)))
        return len(names) > 1

    def _search(self, search: QueueSearch, clock: Callable[[], float]) -> None:
        """Find the queues that have jobs, in random order, so that workers do not all begin with the same queue.

        If a search does not find all queues, the next search comes soon, and continues after the last name.
        """
        started = clock()
        continue_after = self._last_found_name
        # If the search fails, serve the known queues until the next search, or else the queues of all tasks.
        self._search_pause = min(max(2 * self._search_pause, self._poll_interval), LONGEST_SEARCH_PAUSE)
        self._next_search = started + self._search_pause
        if not self.queue_names:
            self.queue_names = sorted(filter(self._serves, {task.options.queue_name for task in registry}))
        names = search(after=continue_after, limit=MOST_QUEUES_FOUND)
        if not names and continue_after:
            names = search(after="", limit=MOST_QUEUES_FOUND)
        self._search_pause = 0.0
        self._last_found_name = names[-1] if len(names) == MOST_QUEUES_FOUND else ""
        now = clock()
        pause = pause_after(now - started)
        is_partial = bool(continue_after or self._last_found_name)
        self._next_search = now + (pause if is_partial else max(pause, self._poll_interval))
        random.shuffle(names)
        self.queue_names = [name for name in names if self._serves(name)]

    def after(self, names: Sequence[str], now: float, *, admitting: bool = False) -> Mapping[str, QueuePosition]:
        """Return by queue the position after which to claim. A queue that is missing is claimed from its front.

        admitting: whether jobs are admitted right before the claim. Most of these jobs are before the known positions.
        """
        if len(self.queue_names) > len(names) >= FEW_QUEUES:  # queues take turns, so each is claimed from its front
            return {}
        return self.cursor.start(now, from_front=admitting)

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
        """Note the result of a claim, and set the time of the next claim. Returns whether all queues are empty."""
        from_front = not after
        (self._head_batch_size if from_front else self._batch_size).succeeded()
        self.cursor.claimed(jobs, after=after, took=ended - started, now=ended)
        size = sum([len(job.args) + len(job.kwargs) for job in jobs])
        if jobs:
            self._most_held = MOST_CHARACTERS_HELD * len(jobs) // size  # how many jobs of this average size fit
        is_full = len(jobs) == room or size >= LARGE_CLAIM
        if not registry.uses_threads_alone:
            self._needed_runners.note(names, jobs, is_full=is_full, now=ended)
        if is_full or self._skipped_other_queues:
            self._next_claim_at, self._is_idle = ended, False
        elif len(names) >= max(room, FEW_QUEUES) and not self._has_fixed_queues:  # other queues may have jobs
            empty_queues = set(names)  # a later search finds them again when they have jobs
            self.queue_names = [name for name in self.queue_names if name not in empty_queues]
            if not self.queue_names:
                self._next_search = ended
            self._next_claim_at, self._is_idle = ended, False
            return False
        else:
            self._schedule_next_claim(names, from_front, ended)
        return from_front and not jobs

    def _schedule_next_claim(self, names: Sequence[str], from_front: bool, now: float) -> None:
        """Set the time of the next claim after a claim left slots free. If it may have missed jobs, claim soon."""
        self._must_check_front = self._must_check_front and not from_front
        self._next_claim_at = now + self._poll_interval
        self._is_idle = not self._is_drain
        supervisor_calls = self._shared.watched_until > now and not self._is_drain
        if from_front and self._last_found_name:
            self._next_claim_at, self._is_idle = self._next_search, False
        elif self._must_check_front or not (from_front or supervisor_calls):
            self._next_claim_at, self._is_idle = min(self._next_claim_at, self.cursor.due_at), False
        if len(names) < len(self.queue_names):  # the claim skipped some queues
            self._next_claim_at, self._is_idle = min(self._next_claim_at, now + RUNNERS_KNOWN_SECONDS), False

    def limit(self, room: int, after: Mapping[str, QueuePosition]) -> int:
        """Return how many jobs the next claim may return, if there is room for `room` jobs."""
        return min(room, self._room_in_chosen_queues, (self._batch_size if after else self._head_batch_size).rows)

    def failed(self, claim: Claim, *, timed_out: bool, now: float) -> None:
        """Note that a claim failed. If it timed out, finding a first job took too long, or the jobs are too large."""
        (self._batch_size if claim.after else self._head_batch_size).failed(claim.limit)
        if timed_out and (claim.after or not self.cursor.full_scan_failed(now)):
            self.lost = claim

    def resume_from(self, found: Sequence[tuple[str, int | None, QueuePosition]], now: float) -> None:
        """After a claim timed out, continue at the positions of the first jobs, which were found by `first_in_queues`.

        If the claim asked for only one job, and this job came first after the claim's position, the job is too large.
        Then the next claim skips the job.
        """
        assert self.lost is not None  # noqa: S101 (for the type checker: called only after a lost claim)
        lost_claim, self.lost = self.lost, None
        positions = {
            name: lost_claim.after.get(name, position) if job_id is None else position._replace(id=job_id - 1)
            for name, job_id, position in found
        }
        jobs = [(name, job_id, position) for name, job_id, position in found if job_id is not None]
        for name, job_id, position in jobs[:1]:
            if lost_claim.limit == 1 and positions[name] == lost_claim.after.get(name):
                positions[name] = position
                logs.job_not_claimed(job_id, name)
        self.cursor.move_to(positions, now)

    def start_over(self) -> None:
        """Claim at once from the front of the queues, because the last claim's result or a notification may be lost.

        If the last search for queues failed, this does not make the next search come earlier.
        """
        self._next_claim_at, self._is_idle = 0.0, False
        self._must_check_front = True
        self._was_called = False
        if not self._search_pause:
            self._next_search = 0.0
        self.cursor.start_over()

    def check_at(self, time: float) -> None:
        """Claim jobs and search for queues at this time."""
        self._next_claim_at, self._is_idle = time, False
        self._was_called = False
        self._next_search = time

    def called(self, queue_name: str) -> None:
        """Claim at once from this queue, because the supervisor called. Without a name, also search for queues."""
        if queue_name:
            self.queues_notified({queue_name})
        else:
            self.start_over()

    def queues_notified(self, queue_names: set[str]) -> None:
        """Claim at once if the worker serves one of these queues, because they were notified of new jobs."""
        if not queue_names:
            return
        if not self._has_fixed_queues:
            new_names = sorted(queue_names.difference(self.queue_names))
            self.queue_names = [name for name in new_names if self._serves(name)] + self.queue_names
        if queue_names.intersection(self.queue_names):
            self._was_called = self._is_idle and self._shared.watched_until > 0.0
            self._next_claim_at, self._is_idle = 0.0, False
            self._must_check_front = True


PREFETCH_SECONDS = 0.2
"""For how many seconds of work a worker claims jobs ahead."""

MOST_PREFETCHED = 4_000
"""The most jobs that are claimed ahead. After a crash of the worker, these jobs wait until a supervisor releases
them."""

LONGEST_WAIT_AHEAD = 0.5
"""A claimed job that has waited this many seconds for a slot is released. A release costs a second claim, so this limit
is more generous than `PREFETCH_SECONDS`."""


class Capacity:
    """Counts the slots of one runner, and the jobs to claim ahead. Used only by the control loop's thread."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        # Each counts the jobs that have finished within its number of seconds before now.
        self.within_prefetch = Recent(PREFETCH_SECONDS)
        self._within_wait = Recent(LONGEST_WAIT_AHEAD)

    def finished(self, count: int, now: float) -> None:
        """Note that this many jobs have finished."""
        if count:
            self.within_prefetch.add(count, now)
            self._within_wait.add(count, now)

    def prefetch(self, now: float) -> int:
        """Return how many jobs to claim in addition to the jobs for free slots."""
        return min(self.within_prefetch.count(now), MOST_PREFETCHED)

    def room(self, unfinished: int, now: float, *, most: int = MOST_PREFETCHED) -> int:
        """How many more jobs to claim: the capacity minus the number of unfinished jobs.

        The capacity is concurrency + prefetch, at most `most`, but never less than the concurrency. One claim asks for
        at most half of the capacity, or for the concurrency if that is more. So one half of the jobs runs while the
        other half is claimed.
        """
        capacity = self._concurrency + self.prefetch(now)
        if capacity > most:
            capacity = max(most, self._concurrency)
        return max(min(capacity - unfinished, max(self._concurrency, capacity // 2)), 0)

    def surplus(self, unfinished: int, now: float) -> int:
        """Return how many of the jobs that have not started would have to wait too long for a slot."""
        return max(unfinished - self._concurrency - self._within_wait.count(now), 0)


RUNNERS_KNOWN_SECONDS = 1.0
"""For how many seconds the next jobs of a queue are assumed to need the same runners as the last jobs."""

MOST_QUEUES_REMEMBERED = 10_000
"""For how many queues the needed runners are remembered."""

Free = Mapping[str, int]
"""How many more jobs each runner has room for, by the runner's name."""


class RunnersOfQueue(NamedTuple):
    runners: set[str]
    until: float
    """When this is forgotten, by the monotonic clock."""


class NeededRunners:
    """For each queue, the runners that its last claimed jobs needed. Used by the control loop's thread."""

    def __init__(self) -> None:
        self._needs: dict[str, RunnersOfQueue] = {}

    def room(self, names: Iterable[str], free: Free, now: float) -> int:
        """Return how many jobs one claim may take from these queues, so that each needed runner has room for them."""
        rooms = [self._room(name, free, now) for name in names]
        return min((room for room in rooms if room), default=0 if rooms else max(free.values()))

    def with_room(self, names: list[str], free: Free, now: float) -> list[str]:
        """Return the queues whose jobs need only runners that have room."""
        return names if all(free.values()) else [name for name in names if self._room(name, free, now)]

    def note(self, names: Sequence[str], jobs: Sequence[ClaimedJob], *, is_full: bool, now: float) -> None:
        """Note the jobs that were claimed from these queues. A claim that `is_full` may not have reached all queues."""
        if len(self._needs) > MOST_QUEUES_REMEMBERED:
            self._needs.clear()
        runners_by_queue: dict[str, set[str]] = {}
        for queue_name, task in {(job.queue_name, job.task) for job in jobs}:
            runners_by_queue.setdefault(queue_name, set()).add(registry.runner_of(task))
        # A full claim has found all jobs of the queues before the queue of its last job.
        reached = names[: names.index(jobs[-1].queue_name)] if is_full and jobs else names
        for name in reached:
            self._needs.pop(name, None)
        for name, runners in runners_by_queue.items():
            self._needs[name] = RunnersOfQueue(runners, now + RUNNERS_KNOWN_SECONDS)

    def _room(self, name: str, free: Free, now: float) -> int:
        needed = self._needs.get(name)
        if needed is None or needed.until <= now:
            return max(free.values())
        return min(free[runner] for runner in needed.runners)


FULL_SCAN_SHARE = 1 / 20
"""The share of its time that a worker spends on claims from the front, unless `MAX_FULL_SCAN_PAUSE` requires more."""

MAX_FULL_SCAN_PAUSE = 0.8
"""The most seconds between two claims from the front, so that every job is found within about a second."""

CHEAP_FRONT_SECONDS = 0.005
"""If a claim from the front takes less than this many seconds, it may come more often, to find newly admitted jobs."""

FIRST_FRONT_PAUSE, LONGEST_FRONT_PAUSE = 4.0, 60.0
"""After a claim from the front timed out, the seconds until the next one. The pause doubles with each timeout."""


def pause_after(seconds: float) -> float:
    """Return the seconds until the next claim from the front, if the last claim took this many seconds."""
    pause_factor = 1 / FULL_SCAN_SHARE - 1  # pausing 19 times as long as a claim takes leaves it 1 / 20 of the time
    return min(seconds * pause_factor, MAX_FULL_SCAN_PAUSE)


class ClaimCursor:
    """Remembers how far a worker has claimed in each queue, and when to claim from the front again."""

    def __init__(self) -> None:
        self._positions: dict[str, QueuePosition] = {}
        self._failures = 0
        self._is_front_cheap = True
        self.due_at = 0.0
        """When to claim from the front again."""

    def start(self, now: float, *, from_front: bool = False) -> Mapping[str, QueuePosition]:
        """Return by queue the position after which to claim. A queue that is missing is claimed from its front.

        from_front: there may be new jobs before the known positions, so claim from the front if this is cheap.
        """
        if self.due_at > now and not (from_front and self._is_front_cheap):
            return dict(self._positions)
        self.due_at = now + MAX_FULL_SCAN_PAUSE  # until the cost of this claim is known
        return {}

    def claimed(
        self, jobs: Sequence[ClaimedJob], *, after: Mapping[str, QueuePosition], took: float, now: float
    ) -> None:
        """Note the jobs that a claim returned, in their order. The claim began at `after`, and took `took` seconds."""
        if not after:
            self._failures = 0
            # The time until the first row was found. The times of later rows include the updates of earlier rows.
            seconds_to_first = min((job.claim_seconds for job in jobs), default=took)
            self.due_at = now + pause_after(seconds_to_first)
            self._is_front_cheap = seconds_to_first < CHEAP_FRONT_SECONDS
            self._positions = {}
        for name, last_job in {job.queue_name: job for job in jobs}.items():  # the last job of each queue
            # A claim from the front that was sent later may have found earlier jobs. If so, keep its position.
            start = after.get(name, QUEUE_HEAD)
            if name not in self._positions or self._positions[name] >= start:
                # A job that was just admitted may be before `start`.
                self._positions[name] = max(last_job.position, start)

    def start_over(self) -> None:
        """Claim from the front at once, unless the last claim from the front failed."""
        if not self._failures:
            self.due_at = 0.0

    def full_scan_failed(self, now: float) -> bool:
        """Note that a claim from the front timed out. Returns whether later positions are known."""
        self._failures += 1
        self._is_front_cheap = False
        self.due_at = now + min(FIRST_FRONT_PAUSE * 2 ** (self._failures - 1), LONGEST_FRONT_PAUSE)
        return bool(self._positions)

    def move_to(self, positions: Mapping[str, QueuePosition], now: float) -> None:
        """Until the next claim from the front, claim after these positions, and after the positions already known."""
        self._positions.update(positions)
        self.due_at = max(self.due_at, now + MAX_FULL_SCAN_PAUSE)
