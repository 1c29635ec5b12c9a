"""Runs `def` tasks, each in a thread.

Invariant: a thread hands in its attempt before it does anything else. If an attempt was interrupted, is stuck, or has
broken the connections of its thread, a new thread replaces the old one.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

from ...events import logs
from ...values.records import NEVER, Attempt, ClaimedJob
from .connections import ThreadConnections
from .executor import Executor, Finish
from .running_attempt import RunningAttempt, RunningJobs


class ThreadRunner:
    """Runs up to `concurrency` attempts in as many threads, started with the first job."""

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
        self._executor = executor
        self._concurrency = concurrency
        self._to_start = concurrency
        self._running_jobs = running_jobs
        self._finish = finish
        self._follow = follow
        self._waiting: queue.SimpleQueue[ClaimedJob | None] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}  # by entry
        self._stuck: dict[int, threading.Thread] = {}  # by entry: those with a stuck attempt
        self._free_entries = list(reversed(entries))  # the entry freed last is used first
        self._changing = threading.Lock()  # guards the attributes above; never held while a job runs
        self._is_ending = False
        self._submitted = 0
        self._reported = dict.fromkeys(entries, 0)  # attempts by entry; each number has one writer
        self._followed = dict.fromkeys(entries, 0)  # jobs that have begun in the place of others, likewise

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
        """Start another thread, which replaces the one with this stuck attempt, unless that has left by itself."""
        self._submitted -= 1  # the control loop has reported the attempt
        with self._changing:
            for entry, thread in self._threads.items():
                if thread.ident == running.thread:
                    self._stuck[entry] = self._threads.pop(entry)
                    self._start_another()
                    return

    def ignore_blocked(self) -> None:
        """Do nothing: this runner reports no blockage."""

    @property
    def unfinished(self) -> int:
        return self._submitted + sum(self._followed.values()) - sum(self._reported.values())

    @property
    def is_used_up(self) -> bool:
        return len(self._stuck) >= self._concurrency

    def stop(self, deadline: float) -> None:
        self._is_ending = True
        threads = list(self._threads.values())
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        entry = self._free_entries.pop()
        # Daemons: one that is stuck in a task must not keep the process from ending.
        thread = threading.Thread(target=self._run, args=[entry], name=f"skipqueue-{entry + 1}", daemon=True)
        self._threads[entry] = thread
        thread.start()

    def _start_another(self) -> None:
        """Replace a thread that was removed from `_threads`, by the control loop or by the thread itself."""
        if self._free_entries and not self._is_ending:
            self._start()

    # In the threads

    def _run(self, entry: int) -> None:
        try:
            connections = ThreadConnections(self._executor.interrupter)
            try:
                self._work(entry, connections)
            finally:
                connections.throw_away()
                self._leave(entry)
        except BaseException as error:
            self._finish(error)

    def _leave(self, entry: int) -> None:
        with self._changing:
            is_given_up = self._threads.pop(entry, None) is None
            if is_given_up:
                self._stuck.pop(entry, None)
                self._running_jobs.end(entry)
            self._free_entries.append(entry)
            if not is_given_up:
                self._start_another()

    def _work(self, entry: int, connections: ThreadConnections) -> None:
        following: ClaimedJob | None = None
        while (job := following or self._next(connections)) is not None:
            if connections.opened:
                connections.check()
            self._running_jobs.begin(entry, job.id)
            running = RunningAttempt(job)
            attempt = self._executor.execute(running)
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
