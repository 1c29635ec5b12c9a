"""Watch the queues for all workers of a supervisor, and call workers when there are jobs.

A supervisor listens for notifications, and looks for jobs at intervals. It promises its workers to watch the queues for
the next 1.5 seconds. If it cannot renew the promise, each worker watches the queues itself.

To call a worker means to tell it to claim jobs. The supervisor calls the workers with the most free slots first, until
their slots are enough for the jobs. If a called worker does not claim, the supervisor calls other workers. If there are
too few free slots, it also calls workers without a free slot, which claim when they have room.

Each notification reaches the supervisors of all machines, but only one machine can claim a single job. A machine whose
claims find no job answers further notifications only ten times per second. The machine that got the job still answers
at once. If this machine is full, another machine finds the next job within a tenth of a second. `Contention` decides
when a machine answers; callers pass the time, by the monotonic clock.
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
"""The seconds between two answers to notifications, on a machine whose claims find no job."""

WIN_SECONDS = 0.05
"""For this many seconds after a claim has found a job, claims that find none do not count as lost."""


class Contention:
    """Decides when a supervisor answers notifications, so that not all machines compete for each job."""

    def __init__(self) -> None:
        self.machines = 1
        """How many supervisors have live workers, including this supervisor."""
        # When the periods of this machine begin, each of which is `ANSWER_PAUSE` long.
        self.phase = random.uniform(0, ANSWER_PAUSE)  # noqa: S311 (spreads the machines, guards nothing)
        self.quiet_until = 0.0
        self._won_at = float("-inf")

    def see(self, worker_ids: Collection[str]) -> None:
        """Note the ids, `supervisor/number:digits`, of the live workers of other supervisors."""
        self.machines = 1 + len({id.rpartition("/")[0] for id in worker_ids})

    def answer_at(self, jobs: int, now: float) -> float:
        """When to answer notifications of this many jobs: at once, if there is a job for every machine."""
        return now if jobs >= self.machines else max(self.quiet_until, now)

    def won(self, now: float) -> None:
        """Note that a claim of a worker has found a job."""
        self.quiet_until = 0.0
        self._won_at = now

    def lost(self, now: float) -> None:
        """Note that a claim has found no job, unless another claim has just found a job."""
        if self.machines > 1 and now - self._won_at > WIN_SECONDS:
            seconds_into_period = (now - self.phase) % ANSWER_PAUSE
            self.quiet_until = now + ANSWER_PAUSE - seconds_into_period  # when this machine's next period begins


@dataclass
class CalledWorker:
    """A worker that was called, and its state at that moment."""

    process: WorkerProcess
    id: str
    """The id of the called process, which another process may have replaced."""
    number: int
    """The number of the call."""
    slots: int
    """How many of its slots were free."""
    claimed: int
    """How many jobs the process had claimed before the call."""

    @property
    def has_answered(self) -> bool:
        return self.process.id == self.id and self.process.shared.answered >= self.number

    @property
    def found(self) -> int:
        """How many jobs the process has claimed since the call."""
        return self.process.shared.claimed - self.claimed if self.process.id == self.id else 0


@dataclass
class Round:
    """A round of calls: a number of jobs in one queue, and the workers that were called for these jobs."""

    queue_name: str
    jobs: int
    called: list[CalledWorker]
    review_at: float
    tried: list[WorkerProcess]
    """The workers that were called for these jobs, in this round and in earlier rounds."""

    @property
    def missing(self) -> int:
        """For how many jobs to call other workers.

        A worker that has not answered, or that has filled all its slots, may have left jobs in the queue.
        """
        if not all(worker.has_answered for worker in self.called):
            return max(self.jobs - self.found, 1)
        return self.jobs - self.found if any(worker.found >= worker.slots for worker in self.called) else 0

    @property
    def found(self) -> int:
        return sum(worker.found for worker in self.called)


class CallWorkers(Service):
    """A service that calls workers when notifications announce jobs. It sends no statements."""

    name = "call_workers"
    loop_handles_errors = False

    def __init__(
        self, processes: Sequence[WorkerProcess], serves: Callable[[str], bool], contention: Contention
    ) -> None:
        self._processes = processes
        self._serves = serves
        self.contention = contention
        self._wanted: Counter[str] = Counter()  # for how many jobs to call workers, by queue
        self._answer_at = NEVER  # when to call workers for these jobs
        self._rounds: deque[Round] = deque()  # the rounds to review, in the order of `review_at`
        self._claimed = 0  # how many jobs the workers had claimed at the last look
        self._paused: frozenset[str] = frozenset()  # the paused queues

    @property
    def due_at(self) -> float:
        return min(self._answer_at, self._rounds[0].review_at if self._rounds else NEVER)

    def run(self, now: float) -> None:
        self._note_claims(now)
        while self._rounds and self._rounds[0].review_at <= now:
            ended_round = self._rounds.popleft()
            if ended_round.missing > 0:
                self._call(ended_round.queue_name, ended_round.missing, now, ended_round.tried)
            elif not ended_round.found:
                self.contention.lost(now)
        if self._answer_at <= now:
            self._answer_at = NEVER
            jobs_by_queue, self._wanted = self._wanted, Counter()
            if len(jobs_by_queue) > MOST_CALLS:
                jobs_by_queue = Counter({"": jobs_by_queue.total()})
            for queue_name, jobs in jobs_by_queue.items():
                self._call(queue_name, jobs, now)

    def notified(self, payloads: Collection[str]) -> None:
        """Call workers for the jobs that these notifications announce, at the time that `Contention` decides.

        Leaves out paused queues. If a queue was just resumed, the next search finds its jobs.
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
        """Call all workers that have room, because these queues have an unknown number of jobs."""
        self._paused = frozenset(paused)
        served = [queue_name for queue_name in queue_names if queue_name and self._serves(queue_name)]
        for queue_name in served if len(served) <= MOST_CALLS else [""]:
            for process in self._processes:
                if process.has_room:
                    process.call(queue_name, 0, time.monotonic())

    def _call(self, queue_name: str, jobs: int, now: float, tried: Sequence[WorkerProcess] = ()) -> None:
        """Call workers for this many jobs, most free slots first. If slots are lacking, also call the full workers."""
        untried = [process for process in self._processes if process not in tried]
        called: list[CalledWorker] = []
        jobs_to_claim = jobs
        for process in sorted(untried, key=lambda process: process.vacancy(now), reverse=True):
            slots = process.vacancy(now)
            if jobs <= 0 or not slots:
                break
            claimed = process.shared.claimed
            call_number = process.call(queue_name, min(jobs, slots), now)
            called.append(CalledWorker(process, process.id, call_number, slots, claimed))
            jobs -= slots
        if jobs > 0:
            for process in untried:
                process.call(queue_name, 0, now)
        if called:
            all_tried = [*tried, *(worker.process for worker in called)]
            self._rounds.append(Round(queue_name, jobs_to_claim, called, now + CALL_PATIENCE_SECONDS, all_tried))

    def _note_claims(self, now: float) -> None:
        claimed = sum(process.shared.claimed for process in self._processes if process.pid)
        if claimed != self._claimed:
            self.contention.won(now)
        self._claimed = claimed


PROMISE_SECONDS = 0.5
"""Seconds between two promises, and between two checks whether the connection still listens."""

SEARCH_SHARE = 0.1
"""The share of the time that searches may take. Among a million dead index entries, a search takes seconds."""


class WatchQueues(Periodic):
    """A service that searches for queues with jobs, and promises the workers to watch the queues."""

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
            self._search_at = now  # notifications of earlier jobs have not arrived here
        if self._search_at <= now and any(process.has_room for process in self._processes):
            self._search_at = now + self._options.poll_interval
            started = time.monotonic()
            paused = paused_queues(self._store, limit=MOST_QUEUES_FOUND)
            names = self._store.queues_with_jobs(limit=MOST_QUEUES_FOUND)
            self._search_at = max(self._search_at, now + (time.monotonic() - started) / SEARCH_SHARE)
            may_be_missing = self._options.queue_names if len(names) == MOST_QUEUES_FOUND else ()
            self._queues_found([*names, *may_be_missing], paused)
        if now - self._ran_at < PROMISE / 2:  # no promise if other services take so long that calls would come late
            for process in self._processes:
                if process.pid:
                    process.shared.watched_until = time.monotonic() + PROMISE
                    process.shared.is_session = self._control.is_session
        self._ran_at = now
        self.run_again_in(min(PROMISE_SECONDS, self._search_at - now) if self._search_at > now else PROMISE_SECONDS)

    def notified(self, payloads: Collection[str]) -> None:
        """If a queue was paused or resumed, search at once, unless this service waits after an error."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self._search_at = self.due_at = 0.0

    def _end_promises(self) -> None:
        for process in self._processes:
            if process.pid:
                process.shared.watched_until = 0.0
                process.shared.is_session = False  # the next connection may go through a pooler
