"""The pool of a worker runs its jobs: `def` tasks in threads, and `async def` tasks in an event loop.

A runner is one of these two ways to run jobs. The pool gives each job to the runner of its task.

The pool returns each submitted job exactly once: as an attempt in `finished`, or by `withdraw`. If an attempt is stuck,
the pool returns it as failed, and gives its slot to another job. But if the job holds a permit of a limit, the pool
waits until the code of the stuck attempt has ended. If a thread of a runner fails, its exception is put into
`finished`, so that no job waits forever. The pool does not use the database.

To add a runner, write a class with the methods of `Runner`, and add it to `RUNNERS` and its name to `jobs.registry`.
The attribute `runner` of `jobs.task.Task` says which tasks use it.

In the `ThreadRunner`, a thread reports a finished attempt before it does anything else. If the attempt was interrupted,
is stuck, or has broken the thread's connections, a new thread replaces the old thread.
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
"""For how many seconds a runner that seems blocked is given another chance to respond."""

RESPONSE_TIME = 0.5
"""If a runner with a free slot does not begin a waiting job within this many seconds, its jobs are withdrawn."""

UNRESPONSIVE_LOG_SECONDS = 60.0
"""The least number of seconds between two log lines about a runner that does not respond."""

RUNNERS_END_SECONDS = 2.0
"""How many seconds to wait until a runner has ended. Its threads are daemons, and no longer run jobs."""


class Pool:
    """Runs the jobs of one worker. Only the control loop's thread calls its methods."""

    def __init__(
        self,
        executor: Executor,
        *,
        concurrency: int,
        wake: Callable[[], None],
        running_jobs: RunningJobs | None = None,
        keeps_permits: bool = False,
        begin_order: BeginOrder | None = None,
    ) -> None:
        """keeps_permits: return a stuck attempt of a job with a permit only after its code has ended."""
        self.keeps_permits = keeps_permits
        self._kept_back: dict[LeaseRef, RunningAttempt] = {}
        self.running_jobs = running_jobs or RunningJobs(ENTRIES_PER_SLOT * concurrency)
        self.finished: deque[Finished] = deque()
        self.executor = executor
        self.begin_order = begin_order or BeginOrder()
        entry_count = ENTRIES_PER_SLOT * concurrency // len(RUNNERS)  # for each runner
        entries = [range(entry_count * index, entry_count * (index + 1)) for index in range(len(RUNNERS))]
        follow = self.begin_order.follow
        self.runners: dict[str, Runner] = {
            name: make_runner(executor, concurrency, self.running_jobs, own_entries, self._finish, follow)
            for (name, make_runner), own_entries in zip(RUNNERS.items(), entries, strict=True)
        }
        self._wake = wake
        self._next_log = 0.0

    def submit(self, jobs: Iterable[ClaimedJob]) -> None:
        """Run these jobs, in their order. A job with a `permit_key` may have to wait for other jobs of its key."""
        jobs_by_runner: dict[str, list[ClaimedJob]] = {name: [] for name in self.runners}
        # These are the lists of `jobs_by_runner`, by task, because looking up a job's runner is slower.
        jobs_by_task: dict[str, list[ClaimedJob]] = {}
        for job in jobs:
            may_begin = [job] if job.permit_key is None else self.begin_order.enter(job)
            for next_job in may_begin:
                if next_job.task not in jobs_by_task:
                    jobs_by_task[next_job.task] = jobs_by_runner[registry.runner_of(next_job.task)]
                jobs_by_task[next_job.task].append(next_job)
        for name, jobs_of_runner in jobs_by_runner.items():
            if jobs_of_runner:
                self.runners[name].submit(jobs_of_runner)

    def take_finished(self) -> list[Attempt]:
        """Return the attempts that have finished since the last call. If a runner has failed, raise its exception."""
        finished_attempts: list[Attempt] = []
        while self.finished:
            finished = self.finished.popleft()
            if isinstance(finished, BaseException):
                if not finished_attempts:
                    raise finished
                self.finished.appendleft(finished)  # the next call raises it, so that no attempt is lost now
                break
            finished_attempts.append(finished)
            if self._kept_back:
                self._kept_back.pop(finished.job.ref, None)
        return finished_attempts

    @property
    def kept_back(self) -> Collection[LeaseRef]:
        """The leases of jobs with a permit whose attempt is stuck, and is returned only after its code has ended."""
        return self._kept_back.keys()

    def take_kept_back(self) -> list[Attempt]:
        """Return the attempts that were kept back. Called when the process ends; their code ends with it."""
        kept_back, self._kept_back = self._kept_back, {}
        return [attempt for running in kept_back.values() if (attempt := running.take_kept_back())]

    def drop(self, refs: Mapping[LeaseRef, object]) -> list[ClaimedJob]:
        """Take back the jobs with these leases that have not started. The other jobs keep their order."""
        withdrawn = self.withdraw()
        self.submit([job for job in withdrawn if job.ref not in refs])
        return [job for job in withdrawn if job.ref in refs]

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the running attempt of this job, unless the task has already committed its outcome itself."""
        self.executor.interrupter.cancel(job, reason)

    def withdraw(self) -> list[ClaimedJob]:
        """Take back all jobs that have not started."""
        withdrawn = [job for runner in self.runners.values() for job in runner.withdraw()]
        self.begin_order.taken_from_runners(withdrawn)
        return withdrawn + self.begin_order.withdraw()

    def withdraw_last(self, counts: Mapping[str, int]) -> list[ClaimedJob]:
        """Take back the last jobs that have not started, in their order. `counts` says how many, at most, by runner."""
        last_jobs = [job for name, count in counts.items() if count for job in self.runners[name].withdraw_last(count)]
        self.begin_order.taken_from_runners(last_jobs)
        return last_jobs

    @property
    def unresponsive_at(self) -> float:
        """The monotonic time from which a runner counts as not responding; `NEVER` if all runners respond."""
        return min(runner.silent_since for runner in self.runners.values()) + RESPONSE_TIME

    def unresponsive(self, now: float) -> list[str]:
        """Return the names of the runners that do not respond, for example because an attempt blocks the event loop."""
        return [name for name, runner in self.runners.items() if runner.silent_since + RESPONSE_TIME <= now]

    def withdraw_held_up(self, now: float) -> list[ClaimedJob]:
        """Take back the jobs that wait in a runner that does not respond, and log which attempts run in this runner."""
        blocked_jobs: list[ClaimedJob] = []
        for name in self.unresponsive(now):
            withdrawn = self.runners[name].withdraw()
            self.begin_order.taken_from_runners(withdrawn)
            if withdrawn and self._next_log <= now:
                self._next_log = now + UNRESPONSIVE_LOG_SECONDS
                running = [attempt for attempt in list(self.attempts) if registry.runner_of(attempt.job.task) == name]
                seconds_by_attempt = {
                    f"{attempt.job.task} id={attempt.job.id}": now - attempt.started for attempt in running
                }
                stack = stack_of(running[0].thread) if running else ""
                logs.event_loop_blocked(self.executor.worker, seconds_by_attempt, stack, released=len(withdrawn))
            blocked_jobs += withdrawn
        return blocked_jobs

    @property
    def attempts(self) -> Collection[RunningAttempt]:
        """All running attempts, including stuck ones. Copy it before you read it, as other threads change it."""
        return self.executor.interrupter.attempts

    @property
    def next_deadline(self) -> float:
        """When to call `enforce_limits` and `find_blockage` next, by the monotonic clock."""
        return min(self.executor.interrupter.next_deadline, self._blocked_at())

    def enforce_limits(self) -> list[RunningAttempt]:
        """Interrupt attempts that have timed out. Returns stuck attempts, whose slots other jobs now get."""
        stuck_attempts = []
        for running, stack in self.executor.interrupter.enforce():
            attempt = self.executor.stuck(running, stack)
            is_kept_back = self.keeps_permits and running.job.holds_permit and not running.is_cancelled
            if is_kept_back:
                running.keep_back(attempt)  # before `take_report`, because the attempt's thread looks for it after that
            if running.take_report():  # False if the attempt has finished meanwhile
                if is_kept_back:
                    self._kept_back[running.job.ref] = running
                else:
                    self.finished.append(attempt)
                logs.stuck(attempt, str(running.error), stack)
                self.runners[registry.runner_of(running.job.task)].give_up(running)
                stuck_attempts.append(running)
        return stuck_attempts

    @property
    def has_stuck(self) -> bool:
        return bool(self.executor.interrupter.stuck())

    @property
    def is_used_up(self) -> bool:
        return any(runner.is_used_up for runner in self.runners.values())

    def find_blockage(self) -> bool:
        """Whether code that a finished attempt has left behind blocks other jobs. Returns True once per blockage.

        A runner that seems blocked gets `RESPONSE_CHANCE_SECONDS` to respond.
        """
        deadline = time.monotonic() + RESPONSE_CHANCE_SECONDS
        while self._blocked_at() <= time.monotonic():
            if deadline <= time.monotonic():
                for runner in self.runners.values():
                    runner.ignore_blocked()
                logs.blocked(self.executor.worker, stacks())
                return True
            # A call of C code may have stopped all threads, and the control loop may be the first thread that
            # continues.
            time.sleep(RESPONSE_CHANCE_SECONDS / 10)
        return False

    def charge_only_stuck(self) -> None:
        """When this process ends, count only the attempts of stuck jobs, and not the attempts of other running jobs."""
        self.running_jobs.charge_only([running.job.id for running in self.executor.interrupter.stuck()])

    def stop_at_boundaries(self) -> None:
        """Tell the attempts that the worker stops."""
        self.executor.stop.set()

    def stop(self) -> None:
        """End the runners, after all jobs have ended. Waits at most `RUNNERS_END_SECONDS`."""
        deadline = time.monotonic() + RUNNERS_END_SECONDS
        for runner in self.runners.values():
            runner.stop(deadline)

    def unfinished(self, runner: str) -> int:
        """The number of jobs that run or wait in this runner, except for stuck jobs."""
        return self.runners[runner].unfinished

    def _blocked_at(self) -> float:
        return min(runner.blocked_at for runner in self.runners.values())

    def _finish(self, finished: Finished) -> None:
        """Called by the runners' threads."""
        self.finished.append(finished)
        self._wake()


class Runner(Protocol):
    """Runs up to `concurrency` jobs at once, and calls `finish` with each attempt.

    Only the control loop's thread calls these methods.
    """

    @property
    def unfinished(self) -> int:
        """The number of jobs that run or wait here, except for stuck jobs."""

    @property
    def is_used_up(self) -> bool:
        """Whether all slots of this runner are stuck."""

    @property
    def blocked_at(self) -> float:
        """The monotonic time from which code that runs on after the end of its attempt counts as blocking other jobs.

        Read the property again when this time has come, because it may have changed.
        """

    @property
    def silent_since(self) -> float:
        """The monotonic time since which a job has waited although a slot is free; `NEVER` if there is no such job."""

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Run these jobs in this order, each when a slot is free."""

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started, in their order."""

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        """Take back the last `count` jobs that have not started, or fewer, in their order."""

    def give_up(self, running: RunningAttempt) -> None:
        """Give the slot of this stuck attempt to another attempt."""

    def ignore_blocked(self) -> None:
        """Do not report blockages from now on, because the process is being replaced."""

    def stop(self, deadline: float) -> None:
        """End the runner, which has no jobs left. Waits at most until the deadline, by the monotonic clock."""


class ThreadRunner:
    """Runs up to `concurrency` attempts at once, each in a thread. The threads start with the first job."""

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
        """entries: the indexes in `RunningJobs` for this runner. finish: called with each finished attempt.

        follow: called with each job that has ended; returns the job that must run next in the same slot, if any.
        """
        self.executor = executor
        self._concurrency = concurrency
        self._to_start = concurrency  # how many threads have not been started yet
        self.running_jobs = running_jobs
        self._finish = finish
        self._follow = follow
        self._waiting: queue.SimpleQueue[ClaimedJob | None] = queue.SimpleQueue()
        # An entry is the index of a thread in `RunningJobs`.
        self._threads: dict[int, threading.Thread] = {}  # by entry
        self.stuck: dict[int, threading.Thread] = {}  # the threads with a stuck attempt, by entry
        self._free_entries = list(reversed(entries))  # the entry that became free last is used first
        self._lock = threading.Lock()  # guards the attributes above; never held while a job runs
        self._is_ending = False
        self._submitted = 0
        # Only the thread of an entry changes the next two counts for this entry.
        self._reported = dict.fromkeys(entries, 0)  # how many attempts were reported, by entry
        self._followed = dict.fromkeys(entries, 0)  # how many jobs `_follow` returned, by entry

    def submit(self, jobs: list[ClaimedJob]) -> None:
        self._submitted += len(jobs)
        while self._to_start:
            self._to_start -= 1
            with self._lock:
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
        kept_count = max(len(withdrawn) - count, 0)
        self.submit(withdrawn[:kept_count])
        return withdrawn[kept_count:]

    def give_up(self, running: RunningAttempt) -> None:
        """Start a new thread in place of the thread of this stuck attempt, unless that thread has already ended."""
        self._submitted -= 1  # the control loop has reported the attempt
        with self._lock:
            for entry, thread in self._threads.items():
                if thread.ident == running.thread:
                    self.stuck[entry] = self._threads.pop(entry)
                    self._start()
                    return

    def ignore_blocked(self) -> None:
        """Do nothing, because this runner is never blocked."""

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
        # A daemon thread, so that a stuck task does not keep the process from ending.
        thread = threading.Thread(target=self._run, args=[entry], name=f"skipqueue-{entry + 1}", daemon=True)
        self._threads[entry] = thread
        thread.start()

    # Called in the threads

    def _run(self, entry: int) -> None:
        """Run jobs. When this thread ends, another thread takes its place, unless that has already happened."""
        try:
            connections = ThreadConnections(self.executor.interrupter)
            try:
                self._run_jobs(entry, connections)
            finally:
                connections.throw_away()
                with self._lock:
                    is_given_up = self._threads.pop(entry, None) is None
                    if is_given_up:
                        self.stuck.pop(entry, None)
                        self.running_jobs.end(entry)
                    self._free_entries.append(entry)
                    if not is_given_up:
                        self._start()
        except BaseException as error:
            self._finish(error)

    def _run_jobs(self, entry: int, connections: ThreadConnections) -> None:
        """Run one job after another, until the thread must end or may be in a broken state."""
        next_job: ClaimedJob | None = None
        while (job := next_job or self._next_job(connections)) is not None:
            if connections.opened:
                connections.check()
            self.running_jobs.begin(entry, job.id)
            running = RunningAttempt(job)
            attempt = self.executor.execute(running)
            if running.take_report():  # False if the attempt was stuck, and was already reported
                self._reported[entry] += 1  # before `_finish`, after which the control loop claims a job for the slot
                self._finish(attempt)
            elif kept_back := running.take_kept_back():
                self._finish(kept_back)
            next_job = None if job.permit_key is None else self._follow(job)
            if next_job:
                self._followed[entry] += 1
            if running.has_harmed_thread or (connections.opened and not self._tidy_connections(connections, attempt)):
                if next_job:
                    self._waiting.put(next_job)
                return

    def _tidy_connections(self, connections: ThreadConnections, attempt: Attempt) -> bool:
        """Prepare the connections for the next job. Returns False if this has failed."""
        try:
            connections.tidy(failed=attempt.outcome.error is not None)
        except BaseException as error:
            logs.thread_replaced(attempt, error)
            return False
        return True

    def _next_job(self, connections: ThreadConnections) -> ClaimedJob | None:
        """Wait for the next job. Returns `None` if the thread must end."""
        while True:
            try:
                return self._waiting.get(timeout=connections.patience)
            except queue.Empty:
                connections.close_idle()


Follow = Callable[[ClaimedJob], ClaimedJob | None]
"""Called in the thread of a job that has ended. Returns the job that must begin next in this slot, if there is one."""

MakeRunner = Callable[[Executor, int, RunningJobs, Sequence[int], Finish, Follow], Runner]

RUNNERS: dict[str, MakeRunner] = {THREADS: ThreadRunner, EVENT_LOOP: EventLoopRunner}

ENTRIES_PER_SLOT = 2 * len(RUNNERS)
"""Entries in `RunningJobs` for each slot: for each runner one entry, and a second entry in case that the first is
stuck."""
