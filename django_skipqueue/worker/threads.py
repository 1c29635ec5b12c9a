"""Runs `def` tasks, each in a thread."""

import queue
import threading
import time

from .. import databases
from ..records import ClaimedJob
from .executor import Executor, Finish
from .started import StartedJobs


class ThreadRunner:
    """`concurrency` threads, which are started when they are first needed."""

    def __init__(self, executor: Executor, concurrency: int, started: StartedJobs, finish: Finish) -> None:
        self._executor = executor
        self._concurrency = concurrency
        self._started = started
        self._finish = finish
        self._waiting: queue.SimpleQueue[ClaimedJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Queue jobs for the threads."""
        while len(self._threads) < self._concurrency:
            # Daemons: one that is stuck in a task must not keep the process from ending.
            slot = len(self._threads)
            thread = threading.Thread(target=self._run, args=[slot], name=f"skipqueue-{slot + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
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

    def stop(self, deadline: float) -> None:
        """End the threads, and wait for them until then."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, slot: int) -> None:
        try:
            while (job := self._waiting.get()) is not None:
                self._started.begin(slot, job.id)
                attempt = self._executor.execute(job)
                self._started.end(slot)
                databases.tidy()
                self._finish(attempt)
        except BaseException as error:
            self._finish(error)
        finally:
            databases.close_all()
