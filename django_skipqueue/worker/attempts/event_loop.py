"""Runs `async def` tasks in an event loop, and the calls that they make in its threads.

A finished task can leave code in the event loop, or in the one thread in which asgiref runs all queries. This code can
block later tasks. The runner detects the blockage, so that the worker is replaced.

The calls that `async def` tasks make by `asyncio.to_thread` and `run_in_executor` run in threads of the loop.
Invariant: if a call hangs after the end of its task, later calls lose no thread to it.

In the query thread, asgiref runs the queries and other calls of all `async def` tasks, one after the other. Invariant:
the time limit of an attempt leaves out the time, up to `running_attempt.LONGEST_CLOCK_STOP`, for which the attempt's
call waits for calls of other attempts.
"""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync

from ...jobs.context import current_attempt
from ...values.records import NEVER, ClaimedJob
from .connections import IDLE_TIME, ThreadConnections
from .executor import Executor, Finish
from .forked_children import children
from .running_attempt import STUCK_AFTER, RunningAttempt, RunningJobs

LEFTOVER_TIME = 60.0
"""Seconds for which asgiref's query thread may be busy with code for which no attempt waits."""

CONNECTION_CHECK_SECONDS = 1.0
"""Seconds between two checks whether the connections of the query thread are alive."""


class EventLoopRunner:
    """Runs up to `concurrency` attempts at once, in one event loop in a thread of its own."""

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
        self._running_jobs = running_jobs
        self._free_entries = list(entries)
        self._finish = finish
        self._follow = follow
        self._waiting: deque[ClaimedJob] = deque()
        self.running: dict[asyncio.Task[None], RunningAttempt | None] = {}  # None: not begun, or already reported
        self._unbegun: set[asyncio.Task[None]] = set()  # each takes a job when it begins
        self.stuck: set[RunningAttempt] = set()  # given up, and still running
        self._is_ending = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.call_threads = CallThreads()
        self._query_connections: ThreadConnections | None = None  # of asgiref's query thread
        self.idle_timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0  # when the query connections were last checked before a job, in monotonic seconds
        self._tidying: Future[None] | None = None
        self._ahead_of_tidying: set[asyncio.Task[None]] = set()
        self._called_at = NEVER  # since when a call of `_fill` is due, in monotonic seconds
        self._due_to_begin_at = NEVER  # since when the next task of `_unbegun` is due to begin
        self._left_alone_at = NEVER  # since when no attempt runs that began before the tidying
        self._calls_left_at = NEVER  # since when too many calls run on after their tasks
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="skipqueue-loop", daemon=True)

    def submit(self, jobs: list[ClaimedJob]) -> None:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self.call_threads.use_in(self.loop)
            QueryThread().use_in(self.loop)
            self._thread.start()
        self._waiting.extend(jobs)
        self._call()

    @property
    def blocked_at(self) -> float:
        """When code that outlives its attempt begins to count as blocking the event loop, or its threads.

        In monotonic seconds. A running attempt may block the loop until its time limit. Once an attempt is stuck, the
        loop must respond.
        """
        if self._is_given_up:
            return NEVER
        loop_at = query_thread_at = NEVER
        if self.silent_since < NEVER and (self.stuck or not any(list(self.running.values()))):
            loop_at = self.silent_since + STUCK_AFTER
        if self._is_tidying():
            query_thread_at = self._left_alone_at + LEFTOVER_TIME
        return min(loop_at, query_thread_at, self._calls_left_at)

    @property
    def silent_since(self) -> float:
        return min(self._called_at, self._due_to_begin_at)

    @property
    def is_used_up(self) -> bool:
        return len(self.stuck) >= self._concurrency

    def give_up(self, running: RunningAttempt) -> None:
        """See `Runner`. If the loop itself is stuck, `blocked_at` shows it."""
        assert self.loop is not None  # noqa: S101
        self.stuck.add(running)
        self.loop.call_soon_threadsafe(self._still_stuck, running)
        self._call()

    def ignore_blocked(self) -> None:
        self._is_given_up = True

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + max(0, len(self.running) - len(self._unbegun) - len(self.stuck))

    def withdraw(self) -> list[ClaimedJob]:
        return self.withdraw_last(len(self._waiting))

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        withdrawn: list[ClaimedJob] = []
        with contextlib.suppress(IndexError):
            while len(withdrawn) < count:
                withdrawn.append(self._waiting.pop())
        return withdrawn[::-1]

    def stop(self, deadline: float) -> None:
        """End the event loop, and wait for its thread until the deadline: leftover code of tasks may block it."""
        if self.loop is not None:
            self._is_ending = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _call(self) -> None:
        assert self.loop is not None  # noqa: S101
        self._called_at = min(self._called_at, time.monotonic())
        self.loop.call_soon_threadsafe(self._fill)

    # In the event loop's thread

    def _run(self) -> None:
        assert self.loop is not None  # noqa: S101 (for the type checker: `submit` makes the loop, then starts this)
        try:
            self._in_query_thread(self._make_connections)
            children.call_in_child(self.loop.stop)
            while not self._is_ending:  # a task may stop the loop as well
                self.loop.run_forever()
                if children.is_child:
                    children.leave()  # all other coroutines belong to the parent process
            self.loop.set_task_factory(None)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException as error:
            self._finish(error)
        finally:
            self.loop.close()
            self.call_threads.end()

    def _still_stuck(self, running: RunningAttempt) -> None:
        if running not in self.running.values():
            self.stuck.discard(running)

    def _fill(self) -> None:
        try:
            self.begin_next()
        except BaseException as error:  # else it is the loop's, and the jobs wait for ever
            self._finish(error)

    def begin_next(self) -> None:
        self._called_at = NEVER
        assert self.loop is not None  # noqa: S101
        if self._waiting:
            self._check_soon()
        while (
            len(self._unbegun) < len(self._waiting)
            and len(self.running) - len(self.stuck) < self._concurrency
            and len(self.running) < 2 * self._concurrency  # the number of entries: each attempt takes one
        ):
            # Not by `create_task`: the project may have set a task factory that raises, or that begins the task.
            task = asyncio.Task(self._execute(), loop=self.loop, context=contextvars.Context())
            self.running[task] = None
            self._unbegun.add(task)
            self._due_to_begin_at = min(self._due_to_begin_at, time.monotonic())
            task.add_done_callback(self._done)

    def _note_begun(self, task: "asyncio.Task[None]") -> None:
        self._unbegun.discard(task)
        self._due_to_begin_at = time.monotonic() if self._unbegun else NEVER

    async def _execute(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is a task of the event loop)
        self._note_begun(task)
        try:  # only now: until a coroutine begins, its job can be withdrawn
            running = self.running[task] = RunningAttempt(self._waiting.popleft())
        except IndexError:  # the job was withdrawn
            return
        entry = self._free_entries.pop()
        self._running_jobs.begin(entry, running.job.id)
        attempt = await self._executor.execute_async(running)
        if running.take_report():
            self._finish(attempt)
        else:  # it was given up as stuck
            self.stuck.discard(running)
            if kept_back := running.take_kept_back():
                self._finish(kept_back)
            self._running_jobs.end(entry)
        self._free_entries.append(entry)
        self.running[task] = None
        if following := self._follow(running.job):
            self._waiting.appendleft(following)  # `_done` has it begin
        # To tidy the connections of the query thread takes as long as a small job, so it is done after an error,
        # and when no other job is there. Nothing waits for it: the thread may be busy, or hang in another task's call.
        failed = attempt.outcome.error is not None
        is_idle = not self._waiting and len(self.running) - len(self._unbegun) == 1
        if (failed or is_idle) and not self._is_tidying():  # else the tidying under way is enough
            self._ahead_of_tidying = {task for task, running in self.running.items() if running is not None}
            self._note_left_alone()
            self._tidying = self._in_query_thread(partial(self._tidy, failed))

    def _in_query_thread(self, do: Callable[[], None]) -> "Future[None]":
        """Call `do` in the query thread. Not by `sync_to_async`: a task that cancels all tasks would cancel `do`."""
        future = SyncToAsync.single_thread_executor.submit(do)
        future.add_done_callback(self._report_broken)
        return future

    def _make_connections(self) -> None:
        self._query_connections = ThreadConnections()

    def _tidy(self, failed: bool) -> None:
        if self._query_connections is not None:
            self._query_connections.tidy(failed=failed)

    def _close_idle_after(self, seconds: float) -> None:
        connections = self._query_connections
        if connections is not None and connections.opened and self.idle_timer is None:
            assert self.loop is not None  # noqa: S101
            self.idle_timer = self.loop.call_later(seconds, self._close_idle, connections)

    def _close_idle(self, connections: ThreadConnections) -> None:
        self.idle_timer = None
        if not self.running and connections.patience is not None:
            self._in_query_thread(connections.close_idle)
            self._close_idle_after(connections.patience)

    def _check_soon(self) -> None:
        connections, now = self._query_connections, time.monotonic()
        if connections is not None and connections.opened and self._checked_at + CONNECTION_CHECK_SECONDS <= now:
            self._checked_at = now
            self._in_query_thread(connections.check)

    def _is_tidying(self) -> bool:
        return self._tidying is not None and not self._tidying.done()

    def _note_left_alone(self) -> None:
        """Once all attempts that ran before the tidying have ended, only leftover code can delay the tidying."""
        self._left_alone_at = NEVER if self._ahead_of_tidying else time.monotonic()

    def _done(self, task: "asyncio.Task[None]") -> None:
        if task in self._unbegun:  # a task that cancels all tasks cancelled it before its first step: its job waits
            self._note_begun(task)
        del self.running[task]
        if task in self._ahead_of_tidying:
            self._ahead_of_tidying.remove(task)
            self._note_left_alone()
        self._report_broken(task)
        if self.call_threads.replace_left() >= MOST_LEFT:
            self._calls_left_at = time.monotonic()
        self._fill()
        if not self.running:
            self._close_idle_after(IDLE_TIME)

    def _report_broken(self, done: "asyncio.Task[None] | Future[None]") -> None:
        if not done.cancelled() and (error := done.exception()):
            self._finish(error)


MOST_LEFT = 64
"""Calls still running after their tasks have ended, at which the process is replaced."""


class CallThreads(ThreadPoolExecutor):
    """Used in the event loop's thread. The executor ends with the process: no task can shut it down for other tasks."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="skipqueue-call")
        self._threads_in_use = self._max_workers
        self._callers: dict[Future[Any], asyncio.Task[Any] | None] = {}

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_default_executor(self)
        loop.shutdown_default_executor = _keep  # type: ignore[method-assign]

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(*args, **kwargs)
        try:
            self._callers[future] = asyncio.current_task()
        except RuntimeError:  # called from another thread
            self._callers[future] = None
        future.add_done_callback(self._callers.pop)
        return future

    def replace_left(self) -> int:
        """Allow one more thread for each call that still runs although its task is done. Returns their number."""
        if not self._callers:
            return 0
        callers = list(self._callers.items())
        left = sum(caller is not None and caller.done() and future.running() for future, caller in callers)
        if left:
            self._max_workers = self._threads_in_use + left
            if self._work_queue.qsize():
                self._adjust_thread_count()
        return left

    def end(self) -> None:
        super().shutdown(wait=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: a task that calls this would end the calls of all tasks after it."""


async def _keep(timeout: float | None = None) -> None:
    """Replaces the event loop's own method, after which the loop would refuse further calls."""


class QueryThread:
    """Stops the clock of an attempt while calls of the attempt wait for the query thread, and none of them runs."""

    def __init__(self) -> None:
        self._changing = threading.Lock()  # guards the following, and the clocks; no interruption is raised under it
        self._waiting: Counter[RunningAttempt] = Counter()
        self._served: RunningAttempt | None = None

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the calls that tasks of this event loop make, before it begins to run."""
        loop.run_in_executor = partial(self._run_in_executor, loop.run_in_executor)  # type: ignore[method-assign,assignment]

    def _run_in_executor(
        self,
        run_in_executor: Callable[..., "asyncio.Future[Any]"],
        executor: futures.Executor | None,
        call: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        attempt = current_attempt.get() if executor is SyncToAsync.single_thread_executor else None
        if not isinstance(attempt, RunningAttempt) or attempt.timeout is None:
            return run_in_executor(executor, call, *args)
        unbegun = [attempt]  # emptied once: when the call begins, or is cancelled before it begins
        self._note(attempt, waiting=1)
        future = run_in_executor(executor, self._serve, unbegun, attempt, call, *args)
        future.add_done_callback(lambda _: self._leave_queue(unbegun))
        return future

    def _leave_queue(self, unbegun: list[RunningAttempt], *, is_served: bool | None = None) -> None:
        try:
            attempt = unbegun.pop()
        except IndexError:
            return
        self._note(attempt, waiting=-1, is_served=is_served)

    def _serve(
        self, unbegun: list[RunningAttempt], attempt: RunningAttempt, call: Callable[..., Any], *args: Any
    ) -> object:
        """Called in the query thread."""
        self._leave_queue(unbegun, is_served=True)
        try:
            return call(*args)
        finally:
            self._note(attempt, is_served=False)

    def _note(self, attempt: RunningAttempt, *, waiting: int = 0, is_served: bool | None = None) -> None:
        with self._changing:
            self._waiting[attempt] += waiting
            if is_served is not None:
                self._served = attempt if is_served else None
            if self._waiting[attempt] and self._served is not attempt:
                attempt.stop_clock()
            else:
                attempt.start_clock()
            if not self._waiting[attempt]:
                del self._waiting[attempt]
