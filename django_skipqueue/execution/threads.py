"""Runs `def` tasks, each in a thread.

Invariant: an attempt is handed in before anything else happens in its thread. A thread is used until an attempt in it
was interrupted, broke it or is stuck; then another takes its place.
"""

import queue
import threading
import time

from ..events import logs
from ..values.records import ClaimedJob
from .connections import ThreadConnections
from .executor import Executor, Finish
from .running_jobs import RunningJobs


class ThreadRunner:
    """`concurrency` threads, which are started when they are first needed."""

    def __init__(self, executor: Executor, concurrency: int, started: RunningJobs, finish: Finish) -> None:
        self._executor = executor
        self._concurrency = concurrency
        self._to_start = concurrency
        self._started = started
        self._finish = finish
        self._waiting: queue.SimpleQueue[ClaimedJob | None] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}  # by index
        self._stuck: dict[int, threading.Thread] = {}  # of those that are given up
        self._free_indexes = list(reversed(range(2 * concurrency)))  # the last that was free is the next in use
        self._changing = threading.Lock()  # who is where; never held while a job runs
        self._is_ending = False

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Queue jobs for the threads."""
        while self._to_start:
            self._to_start -= 1
            with self._changing:
                self._start()
        for job in jobs:
            self._waiting.put(job)

    def withdraw(self) -> list[ClaimedJob]:
        """Take back what no thread has started."""
        withdrawn: list[ClaimedJob] = []
        try:
            while True:
                job = self._waiting.get_nowait()
                if job is not None:
                    withdrawn.append(job)
        except queue.Empty:
            return withdrawn

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        """Take back up to `count` jobs that no thread has started, the last ones; the others keep their order."""
        withdrawn = self.withdraw()
        kept = max(len(withdrawn) - count, 0)
        self.submit(withdrawn[:kept])
        return withdrawn[kept:]

    def give_up(self, thread_id: int) -> bool:
        """Have another thread take the place of this one, which is stuck; False: it is none of ours."""
        with self._changing:
            for index, thread in self._threads.items():
                if thread.ident == thread_id:
                    self._stuck[index] = self._threads.pop(index)
                    self._start_another()
                    return True
        return False

    @property
    def is_used_up(self) -> bool:
        """Whether as many threads are stuck as may be in use."""
        return len(self._stuck) >= self._concurrency

    def stop(self, deadline: float) -> None:
        """End the threads, and wait for them until then."""
        self._is_ending = True
        threads = list(self._threads.values())
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        index = self._free_indexes.pop()
        # Daemons: one that is stuck in a task must not keep the process from ending.
        thread = threading.Thread(target=self._run, args=[index], name=f"skipqueue-{index + 1}", daemon=True)
        self._threads[index] = thread
        thread.start()

    def _start_another(self) -> None:
        """Whoever has taken a thread out of `_threads` calls this: the control loop that gave it up, or the thread."""
        if self._free_indexes and not self._is_ending:
            self._start()

    # In the threads

    def _run(self, index: int) -> None:
        try:
            connections = ThreadConnections(self._executor.interrupter)
            try:
                self._work(index, connections)
            finally:
                connections.throw_away()
                self._leave(index)
        except BaseException as error:
            self._finish(error)

    def _leave(self, index: int) -> None:
        with self._changing:
            is_given_up = self._threads.pop(index, None) is None
            if is_given_up:
                self._stuck.pop(index, None)
                self._started.end(index)
            self._free_indexes.append(index)
            if not is_given_up:
                self._start_another()

    def _work(self, index: int, connections: ThreadConnections) -> None:
        """Run jobs, until the thread is to end or is not fit for another one."""
        while (job := self._next(connections)) is not None:
            if connections.opened:
                connections.check()
            self._started.begin(index, job.id)
            attempt = self._executor.execute(job)
            self._finish(attempt)
            if self._executor.interrupter.take_taint():
                return
            if connections.opened:
                try:
                    connections.tidy(failed=attempt.outcome.error is not None)
                except BaseException as error:
                    logs.thread_replaced(attempt, error)
                    return

    def _next(self, connections: ThreadConnections) -> ClaimedJob | None:
        """The next job, waited for; `None`: the thread is to end."""
        while True:
            try:
                return self._waiting.get(timeout=connections.patience)
            except queue.Empty:
                connections.close_idle()
