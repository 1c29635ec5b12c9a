"""Where jobs run: threads for `def` tasks, one event loop for `async def` tasks.

Invariant: a job handed in comes out exactly once: as an attempt in `finished`, or from `withdraw`. Nothing here
touches the queue's tables. A thread that breaks says so, by an exception in `finished`, instead of leaving its jobs
waiting for ever.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from asgiref.sync import sync_to_async

from .. import databases, logs
from ..exceptions import UnknownTask
from ..records import Attempt, ClaimedJob, Lease
from ..registry import tasks
from .executor import Executor
from .limits import GRACE, stacks
from .started import StartedJobs
from .wakeup import Wakeup

END_TIME = 2.0
"""Seconds for which a runner is waited for at its end: its threads are daemons, and what they hang in is no job."""

LEFTOVER_TIME = 60.0
"""Seconds for which the thread in which asgiref runs queries may be busy with what no attempt waits for any more."""

NEVER = float("inf")

Finished = Attempt | BaseException
Finish = Callable[[Finished], None]


class Pool:
    """The jobs that a worker runs, and those that wait for it. Used by the control loop's thread."""

    def __init__(
        self, executor: Executor, *, concurrency: int, wakeup: Wakeup, started: StartedJobs | None = None
    ) -> None:
        self._started = started or StartedJobs(2 * concurrency)
        self.finished: deque[Finished] = deque()
        self._given_up: dict[Lease, Attempt] = {}  # as stuck; they may come out nevertheless
        self._executor = executor
        self._threads = ThreadRunner(executor, concurrency, self._started, self._finish)
        self._event_loop = EventLoopRunner(executor, concurrency, self._started, self._finish)
        self._wakeup = wakeup

    def submit(self, jobs: Iterable[ClaimedJob]) -> None:
        """Run these as soon as there is room, in this order."""
        threaded: list[ClaimedJob] = []
        coroutines: list[ClaimedJob] = []
        for job in jobs:
            (coroutines if _is_async(job) else threaded).append(job)
        if threaded:
            self._threads.submit(threaded)
        if coroutines:
            self._event_loop.submit(coroutines)

    def take_finished(self) -> list[Attempt]:
        """The attempts finished since the last call. Raises what broke a runner, once it has brought those before."""
        taken: list[Attempt] = []
        while self.finished:
            finished = self.finished.popleft()
            if isinstance(finished, BaseException):
                if not taken:
                    raise finished
                self.finished.appendleft(finished)
                break
            taken.append(finished)
        return [attempt for attempt in taken if not self._is_told(attempt)] if self._given_up else taken

    def drop(self, leases: Mapping[Lease, object]) -> list[ClaimedJob]:
        """Take back those of these jobs that have not started; the others keep their order."""
        dropped: list[ClaimedJob] = []
        kept: list[ClaimedJob] = []
        for job in self.withdraw():
            (dropped if (job.id, job.lease) in leases else kept).append(job)
        self.submit(kept)
        return dropped

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the attempt of this job, if it runs."""
        self._executor.limits.cancel(job, reason)

    def withdraw(self) -> list[ClaimedJob]:
        """Take back the jobs that have not started."""
        return self._threads.withdraw() + self._event_loop.withdraw()

    @property
    def next_deadline(self) -> float:
        """When to call `enforce_limits` next, in monotonic seconds."""
        return min(self._executor.limits.next_deadline, self._event_loop.stuck_at)

    def enforce_limits(self) -> bool:
        """Interrupt the attempts whose time is over; whether the worker is to be replaced because something is stuck.

        A stuck attempt counts as finished then, once: failed.
        """
        stuck = self._executor.limits.enforce()
        for interruption, stack in stuck:
            attempt = self._executor.stuck(interruption, stack)
            self.finished.append(attempt)
            self._given_up[attempt.job.id, attempt.job.lease] = attempt
        is_blocked = self._event_loop.stuck_at <= time.monotonic()
        if is_blocked:
            self._event_loop.give_up()
            logs.blocked(self._executor.worker, stacks())
        return bool(stuck) or is_blocked

    def acquit(self) -> None:
        """Have no attempt charged for what runs, however the process ends from here on, unless it is stuck."""
        self._started.acquit(but=[job_id for job_id, _ in self._given_up])

    def stop(self) -> None:
        """End the runners once they have nothing to run; returns when they are gone, or a moment later."""
        deadline = time.monotonic() + END_TIME
        self._threads.stop(deadline)
        self._event_loop.stop(deadline)

    def _is_told(self, attempt: Attempt) -> bool:
        """Whether this is one that was given up as stuck, and ended after all."""
        return self._given_up.get((attempt.job.id, attempt.job.lease), attempt) is not attempt

    def _finish(self, finished: Finished) -> None:
        """Called by the runners' threads."""
        self.finished.append(finished)
        self._wakeup.call()


class ThreadRunner:
    """Runs `def` tasks, each in one of `concurrency` threads, which are started when they are first needed."""

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


class EventLoopRunner:
    """Runs `async def` tasks, up to `concurrency` at once, in one event loop in a thread of its own."""

    def __init__(self, executor: Executor, concurrency: int, started: StartedJobs, finish: Finish) -> None:
        self._executor = executor
        self._concurrency = concurrency
        self._started = started
        self._free_slots = list(range(concurrency, 2 * concurrency))  # those before are the threads'
        self._finish = finish
        self._waiting: deque[ClaimedJob] = deque()
        self._running: dict[asyncio.Task[None], ClaimedJob | None] = {}  # the job until its attempt has come out
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._before_tidying: set[asyncio.Task[None]] = set()
        self._called_at = self._tidying_since = NEVER  # since when the loop, and that thread, are waited for
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="skipqueue-loop", daemon=True)

    def submit(self, jobs: list[ClaimedJob]) -> None:
        """Queue jobs for the event loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        self._waiting.extend(jobs)
        self._called_at = min(self._called_at, time.monotonic())
        self._loop.call_soon_threadsafe(self._fill)

    @property
    def stuck_at(self) -> float:
        """When to hold that code which belongs to no attempt any more blocks the event loop, or the thread for queries.

        In monotonic seconds. While an attempt runs, it may be that which blocks the loop: its own limit is for that.
        """
        if self._is_given_up:
            return NEVER
        is_free = self._called_at < NEVER and not any(list(self._running.values()))
        blocked_at = self._called_at + GRACE if is_free else NEVER
        return min(blocked_at, self._tidying_since + LEFTOVER_TIME)

    def give_up(self) -> None:
        """Never ask for `stuck_at` again: the worker is being replaced."""
        self._is_given_up = True

    def withdraw(self) -> list[ClaimedJob]:
        """Take back what has not started."""
        withdrawn: list[ClaimedJob] = []
        try:
            while True:
                withdrawn.append(self._waiting.popleft())
        except IndexError:
            return withdrawn

    def stop(self, deadline: float) -> None:
        """End the event loop, and wait for it until then: what tasks of the project's left in it may block it."""
        if self._loop is not None:
            self._is_ending = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(max(0.0, deadline - time.monotonic()))

    # In the event loop's thread

    def _run(self) -> None:
        assert self._loop is not None  # noqa: S101 (for the type checker: `submit` makes the loop, then starts this)
        try:
            while not self._is_ending:  # a task of the project's may stop the loop as well
                self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:
            self._finish(error)
        finally:
            self._loop.close()

    def _fill(self) -> None:
        """Start what there is room for."""
        self._called_at = NEVER
        assert self._loop is not None  # noqa: S101
        while len(self._running) < self._concurrency:
            try:
                job = self._waiting.popleft()
            except IndexError:  # all started, or withdrawn meanwhile
                return
            task = self._loop.create_task(self._execute(job))
            self._running[task] = job
            task.add_done_callback(self._done)

    async def _execute(self, job: ClaimedJob) -> None:
        slot = self._free_slots.pop()
        self._started.begin(slot, job.id)
        attempt = await self._executor.execute_async(job)
        self._started.end(slot)
        self._free_slots.append(slot)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is a task of the event loop)
        self._running[task] = None
        self._finish(attempt)
        # Queries ran in the thread that asgiref keeps for them. To tidy up there takes as long as running a small job,
        # so it is done after an error, and when there is nothing else to do. Nobody waits for it: that thread may be
        # busy, or hang, in what another task has it do, or in what is left of an attempt that timed out.
        if attempt.outcome.error is not None or self._is_idle():
            self._tidy_soon()

    def _is_idle(self) -> bool:
        """Whether the attempt that asks is the only one here."""
        return not self._waiting and len(self._running) == 1

    def _tidy_soon(self) -> None:
        """Once for all who ask while it is on its way: that thread does one thing after the other."""
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(_tidy())
            self._tidying.add_done_callback(self._tidied)
            self._before_tidying = {task for task, job in self._running.items() if job is not None}
            self._wait_for_tidying()

    def _wait_for_tidying(self) -> None:
        """What is in that thread before the tidying is of the attempts that ran then. Are they over, it is nobody's."""
        if not self._before_tidying:
            self._tidying_since = time.monotonic()

    def _tidied(self, task: "asyncio.Task[None]") -> None:
        self._before_tidying.clear()
        self._tidying_since = NEVER
        self._tell_broken(task)

    def _done(self, task: "asyncio.Task[None]") -> None:
        job = self._running.pop(task)
        if task in self._before_tidying:
            self._before_tidying.remove(task)
            self._wait_for_tidying()
        if job is not None and task.cancelled():  # before its first step, by code of the project's that cancels all
            self._waiting.appendleft(job)
        self._tell_broken(task)
        self._fill()

    def _tell_broken(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self._finish(error)


async def _tidy() -> None:
    await sync_to_async(databases.tidy)()


def _is_async(job: ClaimedJob) -> bool:
    try:
        return tasks.get(job.task).is_async
    except UnknownTask:
        return False  # the executor says what becomes of it
