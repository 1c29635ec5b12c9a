"""Calls workers when there are jobs: as many as have free slots for them, those with the most first.

Invariant: a call is answered by a claim, or somebody else is called. A worker that has no free slot is called too, if
the others have too few: it looks as soon as it has room.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..runtime.service import Service
from ..store.notify import jobs_in
from ..values.times import NEVER
from .process import MOST_CALLS, WorkerProcess
from .turns import Turns

PATIENCE = 0.02
"""Seconds for which a worker may let a call wait before another is called."""


@dataclass
class Call:
    """A call of one worker."""

    process: WorkerProcess
    id: str
    """The process that was called: another may have its place by now."""
    number: int
    queue_name: str
    vacancy: int
    """How many jobs it could claim."""
    claimed: int
    """How many it had claimed before."""

    @property
    def is_over(self) -> bool:
        """Whether the worker has answered, or is gone."""
        return self.process.id != self.id or not self.process.pid or self.process.standby.heard >= self.number

    @property
    def found(self) -> int:
        """How many jobs the worker has claimed since."""
        return self.process.standby.claimed - self.claimed if self.process.id == self.id else 0

    @property
    def is_in_vain(self) -> bool:
        """Whether the worker has claimed nothing because it had no room, or does not answer."""
        return not self.found and (not self.is_over or self.process.vacancy == 0)


class CallWorkers(Service):
    """Used by the supervisor's thread. It sends no statement."""

    name = "call_workers"
    loop_handles_errors = False

    def __init__(self, processes: Sequence[WorkerProcess], queue_names: Collection[str], turns: Turns) -> None:
        """`queue_names`: the queues that the workers serve; empty: all."""
        self._processes = processes
        self._queue_names = frozenset(queue_names)
        self._turns = turns
        self._wanted: Counter[str] = Counter()  # jobs to call workers for, by queue
        self._calls: list[Call] = []  # of workers with room, not reviewed yet
        self._unheard: list[Call] = []  # of full workers
        self._answer_at = NEVER  # when to call for the jobs that were announced
        self._review_at = NEVER

    @property
    def due_at(self) -> float:
        """When to answer the notifications, or to see what became of the last calls."""
        return min(self._answer_at, self._review_at)

    def run(self, now: float) -> None:
        """See what became of the last calls, and call for the jobs that were announced."""
        self._review(now)
        if self._answer_at <= now:
            self._answer_at = NEVER
            wanted, self._wanted = self._wanted, Counter()
            if len(wanted) > MOST_CALLS:
                wanted = Counter({"": wanted.total()})
            for queue_name, jobs in wanted.items():
                self._call(queue_name, jobs)
            self._review_at = now + PATIENCE if self._calls else NEVER

    def notified(self, payloads: Collection[str]) -> None:
        """Note the jobs of notifications."""
        self.announce(jobs_in(payload) for payload in payloads)

    def announce(self, queues: Iterable[tuple[str, int]]) -> None:
        """Note that queues have so many jobs."""
        total = 0
        for queue_name, jobs in queues:
            if queue_name and (not self._queue_names or queue_name in self._queue_names):
                self._wanted[queue_name] += jobs
                total += jobs
        if total:
            self._answer_at = min(self._answer_at, self._turns.answer_at(total, time.monotonic()))

    def _call(self, queue_name: str, jobs: int, *, besides: WorkerProcess | None = None) -> None:
        """Call workers for so many jobs, those with the most room first."""
        for process in sorted(self._processes, key=lambda process: process.vacancy, reverse=True):
            vacancy = process.vacancy
            if jobs <= 0 or not vacancy:
                break
            if process is not besides:
                self._calls.append(self._call_one(process, queue_name))
                jobs -= vacancy
        if jobs > 0 and not besides:
            self._call_full(queue_name)

    def _call_full(self, queue_name: str) -> None:
        """Call the workers without room as well: each of them looks once it has room."""
        self._unheard = [call for call in self._unheard if not call.is_over]
        for process in self._processes:
            is_news = not any(call.process is process and call.queue_name == queue_name for call in self._unheard)
            if process.pid and not process.vacancy and is_news:
                self._unheard.append(self._call_one(process, queue_name))

    def _call_one(self, process: WorkerProcess, queue_name: str) -> Call:
        vacancy, claimed = process.vacancy, process.standby.claimed
        return Call(process, process.id, process.call(queue_name), queue_name, vacancy, claimed)

    def _review(self, now: float) -> None:
        """Call others for the jobs that nobody may have claimed, and more workers where all rooms were filled."""
        if now < self._review_at and not all(call.is_over for call in self._calls):
            return
        calls, self._calls, self._review_at = self._calls, [], NEVER
        if any(call.found for call in calls):
            self._turns.won(now)
        elif calls and all(call.is_over for call in calls):
            self._turns.lost(now)
        for call in calls:
            if call.is_in_vain:
                self._call(call.queue_name, 1, besides=call.process)
            elif call.found >= call.vacancy:
                self.announce([(call.queue_name, 2 * call.vacancy)])
        if self._calls:
            self._review_at = now + PATIENCE
