"""Runs each job in the runner that its task names: `def` tasks in threads, `async def` tasks in an event loop.

Invariant: the pool returns each submitted job exactly once, as an attempt in `finished` or by `withdraw`. Another
attempt gets the slot of a stuck attempt. If the job of a stuck attempt has a permit, the pool returns the attempt after
its code has ended. The pool uses no table of the queue. If a thread of a runner fails, its exception is put into
`finished`, so that no job waits for ever.

A new runner is a class with the methods of `Runner`, an entry in `RUNNERS`, and its name in `jobs.registry`. The
attribute `runner` of `jobs.task.Task` says which tasks use it.

Invariant of the `ThreadRunner`: a thread hands in its attempt before it does anything else. If an attempt was
interrupted, is stuck, or has broken the connections of its thread, a new thread replaces the old one.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from ...events import logs
from ...jobs.registry import EVENT_LOOP, THREADS, registry
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ..in_exchange import BeginOrder
from .connections import ThreadConnections
from .event_loop import EventLoopRunner
from .executor import Executor, Finish, Finished
from .running_attempt import RunningAttempt, RunningJobs, stack_of, stacks

RESPONSE_CHANCE_SECONDS = 0.5
"""Seconds that a runner gets to respond before it counts as blocked."""

RESPONSE_TIME = 0.5
"""Seconds that jobs wait for a runner that has a free slot and does not begin them, before they are withdrawn."""

UNRESPONSIVE_LOG_SECONDS = 60.0
"""Seconds between two log lines about a runner that does not respond, at least."""

RUNNERS_END_SECONDS = 2.0
"""Seconds to wait for the end of a runner. Its threads are daemons, and run no job any more."""


class Pool:
    """The jobs of a worker that run or wait to run. Used by the control loop's thread."""

    def __init__(
        self,
        executor: Executor,
        *,
        concurrency: int,
        wake: Callable[[], None],
        running_jobs: RunningJobs | None = None,
        keeps_permits: bool = False,
        lines: BeginOrder | None = None,
    ) -> None:
        """keeps_permits: return a stuck attempt of a job with a permit only when its code has ended."""
        self.keeps_permits = keeps_permits
        self._kept_back: dict[LeaseRef, RunningAttempt] = {}
        self.running_jobs = running_jobs or RunningJobs(ENTRIES_PER_SLOT * concurrency)
        self.finished: deque[Finished] = deque()
        self.executor = executor
        self.lines = lines or BeginOrder()
        each = ENTRIES_PER_SLOT * concurrency // len(RUNNERS)
        entries = [range(each * number, each * (number + 1)) for number in range(len(RUNNERS))]
        self.runners: dict[str, Runner] = {
            name: make_runner(executor, concurrency, self.running_jobs, its_entries, self._finish, self.lines.follow)
            for (name, make_runner), its_entries in zip(RUNNERS.items(), entries, strict=True)
        }
        self._wake = wake
        self._next_log = 0.0

    def submit(self, jobs: Iterable[ClaimedJob]) -> None:
        """Run these jobs, in their order. Jobs with a `permit_key` may wait in line."""
        parts: dict[str, list[ClaimedJob]] = {name: [] for name in self.runners}
        of_task: dict[str, list[ClaimedJob]] = {}  # `parts` by task: to look up each job's runner would take longer
        for job in jobs:
            for begun in (job,) if job.permit_key is None else self.lines.enter(job):
                if begun.task not in of_task:
                    of_task[begun.task] = parts[registry.runner_of(begun.task)]
                of_task[begun.task].append(begun)
        for name, part in parts.items():
            if part:
                self.runners[name].submit(part)

    def take_finished(self) -> list[Attempt]:
        """Return the attempts finished since the last call. Raises the exception of a runner that failed."""
        taken: list[Attempt] = []
        while self.finished:
            finished = self.finished.popleft()
            if isinstance(finished, BaseException):
                if not taken:
                    raise finished
                self.finished.appendleft(finished)
                break
            taken.append(finished)
            if self._kept_back:
                self._kept_back.pop(finished.job.ref, None)
        return taken

    @property
    def kept_back(self) -> Collection[LeaseRef]:
        """The leases of the jobs whose stuck attempts are returned when their code has ended."""
        return self._kept_back.keys()

    def take_kept_back(self) -> list[Attempt]:
        """Return the kept back attempts now: their code ends with the process, which is about to end."""
        kept_back, self._kept_back = self._kept_back, {}
        return [attempt for running in kept_back.values() if (attempt := running.take_kept_back())]

    def drop(self, refs: Mapping[LeaseRef, object]) -> list[ClaimedJob]:
        """Take back the jobs with these leases that have not started. All other jobs keep their order."""
        dropped: list[ClaimedJob] = []
        kept: list[ClaimedJob] = []
        for job in self.withdraw():
            (dropped if job.ref in refs else kept).append(job)
        self.submit(kept)
        return dropped

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the attempt of this job, if it runs, unless the task itself has committed its outcome."""
        self.executor.interrupter.cancel(job, reason)

    def withdraw(self) -> list[ClaimedJob]:
        withdrawn = [job for runner in self.runners.values() for job in runner.withdraw()]
        self.lines.withdrawn(withdrawn)
        return withdrawn + self.lines.withdraw()

    def withdraw_last(self, counts: Mapping[str, int]) -> list[ClaimedJob]:
        """Take back, in their order, the last jobs that have not started. counts: how many, at most, by runner."""
        last = [job for name, count in counts.items() if count for job in self.runners[name].withdraw_last(count)]
        self.lines.withdrawn(last)
        return last

    @property
    def unresponsive_at(self) -> float:
        """The time from which a runner does not respond, in monotonic seconds; `NEVER`: all respond."""
        return min(runner.silent_since for runner in self.runners.values()) + RESPONSE_TIME

    def unresponsive(self, now: float) -> list[str]:
        """The names of the runners that do not respond: an attempt blocks the event loop."""
        return [name for name, runner in self.runners.items() if runner.silent_since + RESPONSE_TIME <= now]

    def withdraw_held_up(self, now: float) -> list[ClaimedJob]:
        """Take back the jobs that wait in a runner which does not respond, and log what runs in it."""
        held_up: list[ClaimedJob] = []
        for name in self.unresponsive(now):
            withdrawn = self.runners[name].withdraw()
            self.lines.withdrawn(withdrawn)
            if withdrawn and self._next_log <= now:
                self._next_log = now + UNRESPONSIVE_LOG_SECONDS
                running = [each for each in list(self.attempts) if registry.runner_of(each.job.task) == name]
                shown = {f"{each.job.task} id={each.job.id}": now - each.started for each in running}
                stack = stack_of(running[0].thread) if running else ""
                logs.event_loop_blocked(self.executor.worker, shown, stack, released=len(withdrawn))
            held_up += withdrawn
        return held_up

    @property
    def attempts(self) -> Collection[RunningAttempt]:
        """The attempts that run, stuck ones included. Copy it before you read it: other threads change it."""
        return self.executor.interrupter.attempts

    @property
    def next_deadline(self) -> float:
        """When to call `enforce_limits` and `find_blockage` next, in monotonic seconds."""
        return min(self.executor.interrupter.next_deadline, self._blocked_at())

    def enforce_limits(self) -> list[RunningAttempt]:
        """Interrupt attempts whose time is over. Returns the attempts given up as stuck, whose slots other jobs get."""
        given_up = []
        for running, stack in self.executor.interrupter.enforce():
            attempt = self.executor.stuck(running, stack)
            is_kept_back = self.keeps_permits and running.job.holds_permit and not running.is_cancelled
            if is_kept_back:
                running.keep_back(attempt)  # first: the thread of the attempt finds it there after `take_report`
            if running.take_report():  # else it finished while its retry policy ran
                if is_kept_back:
                    self._kept_back[running.job.ref] = running
                else:
                    self.finished.append(attempt)
                logs.stuck(attempt, str(running.error), stack)
                self.runners[registry.runner_of(running.job.task)].give_up(running)
                given_up.append(running)
        return given_up

    @property
    def has_stuck(self) -> bool:
        return bool(self.executor.interrupter.stuck())

    @property
    def is_used_up(self) -> bool:
        return any(runner.is_used_up for runner in self.runners.values())

    def find_blockage(self) -> bool:
        """Whether leftover code of a finished attempt blocks other jobs. True once per blockage.

        Gives a runner that seems blocked the time `RESPONSE_CHANCE_SECONDS` to respond.
        """
        deadline = time.monotonic() + RESPONSE_CHANCE_SECONDS
        while self._blocked_at() <= time.monotonic():
            if deadline <= time.monotonic():
                for runner in self.runners.values():
                    runner.ignore_blocked()
                logs.blocked(self.executor.worker, stacks())
                return True
            # A call into C may have stopped all threads, and the control loop may have continued first.
            time.sleep(RESPONSE_CHANCE_SECONDS / 10)
        return False

    def charge_only_stuck(self) -> None:
        """Have only stuck jobs lose an attempt when this process ends, and no other running job."""
        self.running_jobs.charge_only([running.job.id for running in self.executor.interrupter.stuck()])

    def stop(self) -> None:
        """End the runners, which have no jobs left. Waits at most `RUNNERS_END_SECONDS`."""
        deadline = time.monotonic() + RUNNERS_END_SECONDS
        for runner in self.runners.values():
            runner.stop(deadline)

    def unfinished(self, runner: str) -> int:
        return self.runners[runner].unfinished

    def _blocked_at(self) -> float:
        return min(runner.blocked_at for runner in self.runners.values())

    def _finish(self, finished: Finished) -> None:
        """Called by the runners' threads."""
        self.finished.append(finished)
        self._wake()


class Runner(Protocol):
    """Runs up to `concurrency` jobs at once, and calls `finish` with each attempt. For the control loop's thread."""

    @property
    def unfinished(self) -> int:
        """The number of jobs that run or wait here, except for stuck jobs."""

    @property
    def is_used_up(self) -> bool:
        """Whether all slots of this runner are stuck."""

    @property
    def blocked_at(self) -> float:
        """When code that outlives its attempt begins to count as blocking other jobs, in monotonic seconds.

        Read it again when this time has come: the time may have changed.
        """

    @property
    def silent_since(self) -> float:
        """Since when a job has waited although a slot is free, in monotonic seconds; `NEVER`: no job waits."""

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Run these jobs in this order, as slots become free."""

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started, in their order."""

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        """Take back the last `count` jobs that have not started, or fewer, in their order."""

    def give_up(self, running: RunningAttempt) -> None:
        """Give the slot of this stuck attempt to another attempt."""

    def ignore_blocked(self) -> None:
        """Report no blockage from here on: the process is being replaced."""

    def stop(self, deadline: float) -> None:
        """End the runner, which has no jobs left. Waits until the deadline at most, in monotonic seconds."""


class ThreadRunner:
    """Runs up to `concurrency` attempts, each in a thread. The threads start with the first job."""

    blocked_at = silent_since = NEVER  # no thread can block another

    def __init__(
        self,
        executor: Executor,
        concurrency: int,
        running_jobs: RunningJobs,
        entries: Sequence[int],
        finish: Finish,
        follow: Callable[[ClaimedJob], ClaimedJob | None],
    ) -> None:
        self.executor = executor
        self._concurrency = concurrency
        self._to_start = concurrency
        self.running_jobs = running_jobs
        self._finish = finish
        self._follow = follow
        self._waiting: queue.SimpleQueue[ClaimedJob | None] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}  # by entry
        self.stuck: dict[int, threading.Thread] = {}  # by entry: the threads with a stuck attempt
        self._free_entries = list(reversed(entries))  # the entry freed last is used first
        self._changing = threading.Lock()  # guards the attributes above; never held while a job runs
        self._is_ending = False
        self._submitted = 0
        self._reported = dict.fromkeys(entries, 0)  # number of attempts, by entry; each number has one writer
        self._followed = dict.fromkeys(entries, 0)  # jobs from `_follow`, by entry; each number has one writer

    def submit(self, jobs: list[ClaimedJob]) -> None:
        self._submitted += len(jobs)
        while self._to_start:
            self._to_start -= 1
            with self._changing:
                self._start()
        for job in jobs:
            self._waiting.put(job)

    def withdraw(self) -> list[ClaimedJob]:
        withdrawn: list[ClaimedJob] = []
        try:
            while True:
                job = self._waiting.get_nowait()
                if job is not None:
                    withdrawn.append(job)
        except queue.Empty:
            self._submitted -= len(withdrawn)
            return withdrawn

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        withdrawn = self.withdraw()
        kept = max(len(withdrawn) - count, 0)
        self.submit(withdrawn[:kept])
        return withdrawn[kept:]

    def give_up(self, running: RunningAttempt) -> None:
        """Start a thread that replaces the thread of this stuck attempt, unless that thread has already ended."""
        self._submitted -= 1  # the control loop has reported the attempt
        with self._changing:
            for entry, thread in self._threads.items():
                if thread.ident == running.thread:
                    self.stuck[entry] = self._threads.pop(entry)
                    self._start()
                    return

    def ignore_blocked(self) -> None:
        """Do nothing: this runner reports no blockage."""

    @property
    def unfinished(self) -> int:
        return self._submitted + sum(self._followed.values()) - sum(self._reported.values())

    @property
    def is_used_up(self) -> bool:
        return len(self.stuck) >= self._concurrency

    def stop(self, deadline: float) -> None:
        self._is_ending = True
        threads = list(self._threads.values())
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        if not self._free_entries or self._is_ending:
            return
        entry = self._free_entries.pop()
        # A daemon, so that a thread stuck in a task does not keep the process from ending.
        thread = threading.Thread(target=self._run, args=[entry], name=f"skipqueue-{entry + 1}", daemon=True)
        self._threads[entry] = thread
        thread.start()

    # In the threads

    def _run(self, entry: int) -> None:
        try:
            connections = ThreadConnections(self.executor.interrupter)
            try:
                self._work(entry, connections)
            finally:
                connections.throw_away()
                with self._changing:
                    is_given_up = self._threads.pop(entry, None) is None
                    if is_given_up:
                        self.stuck.pop(entry, None)
                        self.running_jobs.end(entry)
                    self._free_entries.append(entry)
                    if not is_given_up:
                        self._start()
        except BaseException as error:
            self._finish(error)

    def _work(self, entry: int, connections: ThreadConnections) -> None:
        following: ClaimedJob | None = None
        while (job := following or self._next(connections)) is not None:
            if connections.opened:
                connections.check()
            self.running_jobs.begin(entry, job.id)
            running = RunningAttempt(job)
            attempt = self.executor.execute(running)
            if running.take_report():  # else it was given up as stuck
                self._reported[entry] += 1  # first: the control loop then claims for the free slot
                self._finish(attempt)
            elif kept_back := running.take_kept_back():
                self._finish(kept_back)
            following = None if job.permit_key is None else self._follow(job)
            if following:
                self._followed[entry] += 1
            if running.has_harmed_thread or (connections.opened and not self._tidied(connections, attempt)):
                if following:
                    self._waiting.put(following)
                return

    def _tidied(self, connections: ThreadConnections, attempt: Attempt) -> bool:
        """Prepare the connections for the next job. Returns False if that has failed."""
        try:
            connections.tidy(failed=attempt.outcome.error is not None)
        except BaseException as error:
            logs.thread_replaced(attempt, error)
            return False
        return True

    def _next(self, connections: ThreadConnections) -> ClaimedJob | None:
        """Wait for the next job. `None`: the thread must end."""
        while True:
            try:
                return self._waiting.get(timeout=connections.patience)
            except queue.Empty:
                connections.close_idle()


Follow = Callable[[ClaimedJob], ClaimedJob | None]
"""Called in the thread of a job that has ended: the job that begins in its place, if any."""

MakeRunner = Callable[[Executor, int, RunningJobs, Sequence[int], Finish, Follow], Runner]

RUNNERS: dict[str, MakeRunner] = {THREADS: ThreadRunner, EVENT_LOOP: EventLoopRunner}

ENTRIES_PER_SLOT = 2 * len(RUNNERS)
"""Entries in `RunningJobs` for each of `concurrency` slots: for each runner an entry, and a spare if that is stuck."""
