"""Watches the queues in place of the workers, and calls workers when there are jobs.

A supervisor listens for notifications, and looks for jobs at intervals. Invariant: while it cannot watch, for whatever
reason, its promises end, and each of its workers watches the queues.

The supervisor calls workers until their free slots are enough for the jobs, the workers with the most free slots first.

Invariant: a worker answers a call with a claim, or the supervisor calls other workers. If there are too few free slots,
the supervisor also calls the workers without a free slot: each of them claims once it has room.

Each notification reaches every machine, and one machine wins a lone job. A machine whose claim finds no job answers the
next notifications together, ten times a second. The winner goes on answering each notification at once. If the winner
is full, another machine with a free slot finds the job within a tenth of a second. `Contention` decides when a machine
answers. It is pure: callers pass the time, in monotonic seconds.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..queue.notify import QUEUES_PAYLOAD, jobs_in
from ..queue.queues import paused_queues
from ..queue.store import Store
from ..values.records import NEVER
from ..worker.claiming import MOST_QUEUES_FOUND
from ..worker.control_connection import ControlConnection
from ..worker.loop import Periodic, Service
from ..worker.options import WorkerOptions
from ..worker.protocol import PROMISE
from .processes import CALL_PATIENCE_SECONDS, MOST_CALLS, WorkerProcess

ANSWER_PAUSE = 0.1
"""Seconds between two answers of a machine whose claims find no job."""

WIN_SECONDS = 0.05
"""How many seconds after a win a claim without jobs does not count."""


class Contention:
    """One for each supervisor."""

    def __init__(self) -> None:
        self.machines = 1
        """How many supervisors have live workers, this one included."""
        self.phase = random.uniform(0, ANSWER_PAUSE)  # noqa: S311 (spreads the machines, guards nothing)
        self.quiet_until = 0.0
        self._won_at = float("-inf")

    def see(self, others: Collection[str]) -> None:
        """Note the ids, `supervisor/number:digits`, of the live workers of other supervisors."""
        self.machines = 1 + len({id.rpartition("/")[0] for id in others})

    def answer_at(self, jobs: int, now: float) -> float:
        """When to answer notifications of this many jobs: now, if every machine gets a job."""
        return now if jobs >= self.machines else max(self.quiet_until, now)

    def won(self, now: float) -> None:
        self.quiet_until = 0.0
        self._won_at = now

    def lost(self, now: float) -> None:
        """Note that a claim has found no job, unless it follows a win: the win may have claimed the notified job."""
        if self.machines > 1 and now - self._won_at > WIN_SECONDS:
            self.quiet_until = now + ANSWER_PAUSE - (now - self.phase) % ANSWER_PAUSE


@dataclass
class CalledWorker:
    process: WorkerProcess
    id: str
    """The id of the called process, which another process may have replaced."""
    number: int
    """The number of the call."""
    slots: int
    """How many slots were free."""
    claimed: int
    """How many jobs the process had claimed before."""

    @property
    def has_answered(self) -> bool:
        return self.process.id == self.id and self.process.shared.answered >= self.number

    @property
    def found(self) -> int:
        return self.process.shared.claimed - self.claimed if self.process.id == self.id else 0


@dataclass
class Round:
    queue_name: str
    jobs: int
    called: list[CalledWorker]
    review_at: float
    tried: list[WorkerProcess]
    """The workers that were called for these jobs, in this round and in earlier rounds."""

    @property
    def missing(self) -> int:
        """For how many jobs to call other workers.

        A worker that has not answered, or that has filled its slots, may have left jobs in the queue.
        """
        if not all(worker.has_answered for worker in self.called):
            return max(self.jobs - self.found, 1)
        return self.jobs - self.found if any(worker.found >= worker.slots for worker in self.called) else 0

    @property
    def found(self) -> int:
        return sum(worker.found for worker in self.called)


class CallWorkers(Service):
    """Used by the supervisor's thread. It sends no statement."""

    name = "call_workers"
    loop_handles_errors = False

    def __init__(
        self, processes: Sequence[WorkerProcess], serves: Callable[[str], bool], contention: Contention
    ) -> None:
        self._processes = processes
        self._serves = serves
        self.contention = contention
        self._wanted: Counter[str] = Counter()  # jobs to call workers for, by queue
        self._answer_at = NEVER  # when to call for the wanted jobs
        self._rounds: deque[Round] = deque()  # the rounds to review, in the order of their times
        self._claimed = 0
        self._paused: frozenset[str] = frozenset()  # the paused queues

    @property
    def due_at(self) -> float:
        return min(self._answer_at, self._rounds[0].review_at if self._rounds else NEVER)

    def run(self, now: float) -> None:
        self._note_claims(now)
        while self._rounds and self._rounds[0].review_at <= now:
            ended = self._rounds.popleft()
            if ended.missing > 0:
                self._call(ended.queue_name, ended.missing, now, ended.tried)
            elif not ended.found:
                self.contention.lost(now)
        if self._answer_at <= now:
            self._answer_at = NEVER
            wanted, self._wanted = self._wanted, Counter()
            if len(wanted) > MOST_CALLS:
                wanted = Counter({"": wanted.total()})
            for queue_name, jobs in wanted.items():
                self._call(queue_name, jobs, now)

    def notified(self, payloads: Collection[str]) -> None:
        """Call workers for the jobs that these notifications announce, now or when `Contention` says.

        Jobs of paused queues are left out. If a queue was resumed since the last search, the next one finds its jobs.
        """
        for queue_name, jobs in map(jobs_in, payloads):
            if queue_name and self._serves(queue_name) and queue_name not in self._paused:
                self._wanted[queue_name] += jobs
        if self._wanted:
            now = time.monotonic()
            self._note_claims(now)
            self._answer_at = min(self._answer_at, self.contention.answer_at(self._wanted.total(), now))
            if self._answer_at <= now:
                self.run(now)

    def queues_found(self, queue_names: Collection[str], paused: Collection[str]) -> None:
        """Call all workers that have room: these queues have jobs, and nobody knows how many."""
        self._paused = frozenset(paused)
        served = [queue_name for queue_name in queue_names if queue_name and self._serves(queue_name)]
        for queue_name in served if len(served) <= MOST_CALLS else [""]:
            for process in self._processes:
                if process.has_room:
                    process.call(queue_name, 0, time.monotonic())

    def _call(self, queue_name: str, jobs: int, now: float, tried: Sequence[WorkerProcess] = ()) -> None:
        """Call workers for this many jobs: the most free slots first; if slots are missing, the full workers too."""
        others = [process for process in self._processes if process not in tried]
        called: list[CalledWorker] = []
        wanted = jobs
        for process in sorted(others, key=lambda process: process.vacancy(now), reverse=True):
            slots = process.vacancy(now)
            if jobs <= 0 or not slots:
                break
            claimed = process.shared.claimed
            number = process.call(queue_name, min(jobs, slots), now)
            called.append(CalledWorker(process, process.id, number, slots, claimed))
            jobs -= slots
        if jobs > 0:
            for process in others:
                process.call(queue_name, 0, now)
        if called:
            asked = [*tried, *(worker.process for worker in called)]
            self._rounds.append(Round(queue_name, wanted, called, now + CALL_PATIENCE_SECONDS, asked))

    def _note_claims(self, now: float) -> None:
        claimed = sum(process.shared.claimed for process in self._processes if process.pid)
        if claimed != self._claimed:
            self.contention.won(now)
        self._claimed = claimed


PROMISE_SECONDS = 0.5
"""Seconds between two promises, and between two checks whether the connection still listens."""

SEARCH_SHARE = 0.1
"""Share of the time that searches may take: among a million dead index entries a search takes seconds."""


class WatchQueues(Periodic):
    """Used by the supervisor's thread."""

    name = "watch_queues"

    def __init__(
        self,
        store: Store,
        control: ControlConnection,
        processes: Sequence[WorkerProcess],
        options: WorkerOptions,
        *,
        queues_found: Callable[[list[str], list[str]], object],
    ) -> None:
        """queues_found: called with the names of the queues that have jobs, and of the paused queues."""
        self._store = store
        self._control = control
        self._processes = processes
        self._options = options
        self._queues_found = queues_found
        self._search_at = 0.0
        self._ran_at = NEVER
        control.on_broken = self._end_promises

    def run(self, now: float) -> None:
        if self._options.listen and self._control.listen(as_supervisor=True):
            self._search_at = now  # notifications of earlier jobs did not come here
        if self._search_at <= now and any(process.has_room for process in self._processes):
            self._search_at = now + self._options.poll_interval
            started = time.monotonic()
            paused = paused_queues(self._store, limit=MOST_QUEUES_FOUND)
            names = self._store.queues_with_jobs(limit=MOST_QUEUES_FOUND)
            self._search_at = max(self._search_at, now + (time.monotonic() - started) / SEARCH_SHARE)
            more = self._options.queue_names if len(names) == MOST_QUEUES_FOUND else ()  # some may not be found
            self._queues_found([*names, *more], paused)
        if now - self._ran_at < PROMISE / 2:  # else other services take so long that calls would come late
            for process in self._processes:
                if process.pid:
                    process.shared.watched_until = time.monotonic() + PROMISE
                    process.shared.is_session = self._control.is_session
        self._ran_at = now
        self.run_again_in(min(PROMISE_SECONDS, self._search_at - now) if self._search_at > now else PROMISE_SECONDS)

    def notified(self, payloads: Collection[str]) -> None:
        """Search at once: a queue was paused or resumed. An error's back-off is not cut short."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self._search_at = self.due_at = 0.0

    def _end_promises(self) -> None:
        for process in self._processes:
            if process.pid:
                process.shared.watched_until = 0.0
                process.shared.is_session = False  # the next connection may be a pooler's
