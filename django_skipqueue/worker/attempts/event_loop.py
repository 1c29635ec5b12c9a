"""Run `async def` tasks in an event loop.

A finished task can leave code behind, in the event loop or in the query thread. This code can block later tasks. The
runner detects this, so that the worker process is replaced.

If a task calls `asyncio.to_thread` or `run_in_executor`, the call runs in one of the loop's threads. If such a call
still hangs after its task has ended, `CallThreads` adds another thread, so that later calls do not wait for a thread.

The query thread is the single thread in which asgiref runs the database queries of all `async def` tasks, one after the
other. While a query of a task waits for queries of other tasks, the task's timeout is suspended, for at most
`running_attempt.LONGEST_CLOCK_STOP` seconds.
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
"""Seconds for which the query thread may be busy with code that a finished task has left behind."""

CONNECTION_CHECK_SECONDS = 1.0
"""Seconds between two checks of the query thread's connections."""


class EventLoopRunner:
    """Runs up to `concurrency` attempts at once, in an event loop that has its own thread."""

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
        self.running: dict[asyncio.Task[None], RunningAttempt | None] = {}  # None: not started, or already reported
        self._unstarted: set[asyncio.Task[None]] = set()  # each of these tasks takes a job when it starts
        self.stuck: set[RunningAttempt] = set()  # attempts that ignored their interruption, and still run
        self._is_ending = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.call_threads = CallThreads()
        self._query_connections: ThreadConnections | None = None  # the connections of the query thread
        self.idle_timer: asyncio.TimerHandle | None = None
        self._tidying: Future[None] | None = None  # the last call of `_tidy` in the query thread
        self._running_before_tidying: set[asyncio.Task[None]] = set()  # tasks that `_tidy` may have to wait for
        # These times are by the monotonic clock.
        self._checked_at = 0.0  # when the query connections were last checked before a job
        self._called_at = NEVER  # when `_fill` was called, if it has not run yet
        self._due_to_begin_at = NEVER  # since when the next task of `_unstarted` is due to start
        self._only_leftovers_at = NEVER  # since when `_tidy` can only wait for code of finished tasks
        self._too_many_calls_at = NEVER  # since when too many calls of finished tasks still run
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="skipqueue-loop", daemon=True)

    def submit(self, jobs: list[ClaimedJob]) -> None:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self.call_threads.use_in(self.loop)
            QueryThread().use_in(self.loop)
            self._thread.start()
        self._waiting.extend(jobs)
        self._call_fill()

    @property
    def blocked_at(self) -> float:
        """The monotonic time from which code of finished attempts counts as blocking this runner.

        A running attempt may block the event loop until its timeout. Once an attempt is stuck, the loop must respond.
        """
        if self._is_given_up:
            return NEVER
        loop_at = query_thread_at = NEVER
        if self.silent_since < NEVER and (self.stuck or not any(list(self.running.values()))):
            loop_at = self.silent_since + STUCK_AFTER
        if self._is_tidying():
            query_thread_at = self._only_leftovers_at + LEFTOVER_TIME
        return min(loop_at, query_thread_at, self._too_many_calls_at)

    @property
    def silent_since(self) -> float:
        return min(self._called_at, self._due_to_begin_at)

    @property
    def is_used_up(self) -> bool:
        return len(self.stuck) >= self._concurrency

    def give_up(self, running: RunningAttempt) -> None:
        """Give this stuck attempt's slot to another attempt. If the event loop is blocked, `blocked_at` shows it."""
        assert self.loop is not None  # noqa: S101
        self.stuck.add(running)
        self.loop.call_soon_threadsafe(self._forget_if_ended, running)
        self._call_fill()

    def ignore_blocked(self) -> None:
        """Do not report blockages from now on, because the process is being replaced."""
        self._is_given_up = True

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + max(0, len(self.running) - len(self._unstarted) - len(self.stuck))

    def withdraw(self) -> list[ClaimedJob]:
        return self.withdraw_last(len(self._waiting))

    def withdraw_last(self, count: int) -> list[ClaimedJob]:
        withdrawn: list[ClaimedJob] = []
        with contextlib.suppress(IndexError):
            while len(withdrawn) < count:
                withdrawn.append(self._waiting.pop())
        return withdrawn[::-1]

    def stop(self, deadline: float) -> None:
        """End the event loop, and wait for its thread until the deadline. Code of finished tasks may block it."""
        if self.loop is not None:
            self._is_ending = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _call_fill(self) -> None:
        """Have the loop's thread begin waiting jobs."""
        assert self.loop is not None  # noqa: S101
        self._called_at = min(self._called_at, time.monotonic())
        self.loop.call_soon_threadsafe(self._fill)

    # Called in the event loop's thread

    def _run(self) -> None:
        assert self.loop is not None  # noqa: S101 (for the type checker: `submit` has made the loop)
        try:
            self._in_query_thread(self._make_connections)
            children.call_in_child(self.loop.stop)
            while not self._is_ending:  # a loop, because a task may stop the event loop as well
                self.loop.run_forever()
                if children.is_child:
                    children.leave()  # a task has forked this process, and all other coroutines belong to its parent
            self.loop.set_task_factory(None)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException as error:
            self._finish(error)
        finally:
            self.loop.close()
            self.call_threads.end()

    def _forget_if_ended(self, running: RunningAttempt) -> None:
        """Do not count this attempt as stuck if its task has ended in the meantime."""
        if running not in self.running.values():
            self.stuck.discard(running)

    def _fill(self) -> None:
        """Begin as many waiting jobs as there are free slots."""
        try:
            self.begin_next()
        except BaseException as error:  # otherwise asyncio would only log it, and the jobs would wait forever
            self._finish(error)

    def begin_next(self) -> None:
        self._called_at = NEVER
        assert self.loop is not None  # noqa: S101
        if self._waiting:
            self._check_connections()
        while (
            len(self._unstarted) < len(self._waiting)
            and len(self.running) - len(self.stuck) < self._concurrency
            and len(self.running) < 2 * self._concurrency  # the number of entries in `RunningJobs` for this runner
        ):
            # Not `create_task`, because the project may have set a task factory, which may raise or begin the task at
            # once.
            task = asyncio.Task(self._execute(), loop=self.loop, context=contextvars.Context())
            self.running[task] = None
            self._unstarted.add(task)
            self._due_to_begin_at = min(self._due_to_begin_at, time.monotonic())
            task.add_done_callback(self._done)

    def _note_started(self, task: "asyncio.Task[None]") -> None:
        self._unstarted.discard(task)
        self._due_to_begin_at = time.monotonic() if self._unstarted else NEVER

    async def _execute(self) -> None:
        """Run the next waiting job. Each asyncio task of this runner runs this coroutine once."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is a task of the event loop)
        self._note_started(task)
        try:  # take the job only now, because a job can be withdrawn until its coroutine begins
            running = self.running[task] = RunningAttempt(self._waiting.popleft())
        except IndexError:  # the job was withdrawn
            return
        entry = self._free_entries.pop()
        self._running_jobs.begin(entry, running.job.id)
        attempt = await self._executor.execute_async(running)
        if running.take_report():
            self._finish(attempt)
        else:  # the attempt was stuck, and its failure was already reported
            self.stuck.discard(running)
            if kept_back := running.take_kept_back():
                self._finish(kept_back)
            self._running_jobs.end(entry)
        self._free_entries.append(entry)
        self.running[task] = None
        if next_job := self._follow(running.job):
            self._waiting.appendleft(next_job)  # `_done` begins it
        # Tidying the connections of the query thread takes as long as a small job. So it is done only after an error,
        # or when no other job waits. We do not wait for it, because the query thread may be busy or hang.
        failed = attempt.outcome.error is not None
        runs_alone = len(self.running) - len(self._unstarted) == 1  # only this task itself is left
        is_idle = runs_alone and not self._waiting
        if (failed or is_idle) and not self._is_tidying():
            self._running_before_tidying = {task for task, unfinished in self.running.items() if unfinished is not None}
            self._note_only_leftovers()
            self._tidying = self._in_query_thread(partial(self._tidy, failed))

    def _in_query_thread(self, function: Callable[[], None]) -> "Future[None]":
        """Call a function in the query thread. Does not use `sync_to_async`, because a task could cancel that call."""
        future = SyncToAsync.single_thread_executor.submit(function)
        future.add_done_callback(self._report_exception)
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

    def _check_connections(self) -> None:
        connections, now = self._query_connections, time.monotonic()
        if connections is not None and connections.opened and self._checked_at + CONNECTION_CHECK_SECONDS <= now:
            self._checked_at = now
            self._in_query_thread(connections.check)

    def _is_tidying(self) -> bool:
        return self._tidying is not None and not self._tidying.done()

    def _note_only_leftovers(self) -> None:
        """Note the time if all attempts that were running before the tidying have ended.

        From this time on, only code that finished tasks have left behind can delay the tidying.
        """
        self._only_leftovers_at = NEVER if self._running_before_tidying else time.monotonic()

    def _done(self, task: "asyncio.Task[None]") -> None:
        if task in self._unstarted:  # another task cancelled this task before it started, so its job still waits
            self._note_started(task)
        del self.running[task]
        if task in self._running_before_tidying:
            self._running_before_tidying.remove(task)
            self._note_only_leftovers()
        self._report_exception(task)
        if self.call_threads.replace_threads() >= MOST_LEFT:
            self._too_many_calls_at = time.monotonic()
        self._fill()
        if not self.running:
            self._close_idle_after(IDLE_TIME)

    def _report_exception(self, ended_task: "asyncio.Task[None] | Future[None]") -> None:
        if not ended_task.cancelled() and (error := ended_task.exception()):
            self._finish(error)


MOST_LEFT = 64
"""If this many calls still run after their tasks have ended, the worker process is replaced."""


class CallThreads(ThreadPoolExecutor):
    """The threads in which calls by `asyncio.to_thread` run. No task can shut this executor down for others."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="skipqueue-call")
        self._threads_in_use = self._max_workers
        self._callers: dict[Future[Any], asyncio.Task[Any] | None] = {}

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_default_executor(self)
        loop.shutdown_default_executor = _do_not_shut_down  # type: ignore[method-assign]

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(*args, **kwargs)
        try:
            self._callers[future] = asyncio.current_task()
        except RuntimeError:  # submitted from another thread than the event loop's
            self._callers[future] = None
        future.add_done_callback(self._callers.pop)
        return future

    def replace_threads(self) -> int:
        """Allow one more thread for each call that still runs after its task has ended. Return the number of calls."""
        if not self._callers:
            return 0
        callers = list(self._callers.items())
        left_behind = sum(caller is not None and caller.done() and future.running() for future, caller in callers)
        if left_behind:
            self._max_workers = self._threads_in_use + left_behind
            if self._work_queue.qsize():
                self._adjust_thread_count()
        return left_behind

    def end(self) -> None:
        super().shutdown(wait=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, because a task that calls this would end the executor for all later tasks."""


async def _do_not_shut_down(timeout: float | None = None) -> None:
    """Replaces `loop.shutdown_default_executor`, after which the event loop would refuse further calls."""


class QueryThread:
    """Suspends an attempt's timeout while it waits for the query thread, and none of its calls runs there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next two attributes, and the clocks of the attempts
        self._waiting: Counter[RunningAttempt] = Counter()  # how many calls of each attempt wait for the query thread
        self._attempt_of_call: RunningAttempt | None = None  # the attempt whose call runs in the query thread now

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the calls that tasks of this event loop make. Called before the loop begins to run."""
        loop.run_in_executor = partial(self._run_in_executor, loop.run_in_executor)  # type: ignore[method-assign,assignment]

    def _run_in_executor(
        self,
        run_in_executor: Callable[..., "asyncio.Future[Any]"],
        executor: futures.Executor | None,
        call: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        """Replaces `loop.run_in_executor`, so that `_note` is called for the query thread's calls."""
        attempt = current_attempt.get() if executor is SyncToAsync.single_thread_executor else None
        if not isinstance(attempt, RunningAttempt) or attempt.timeout is None:
            return run_in_executor(executor, call, *args)
        unstarted = [attempt]  # emptied when the call begins, or when it is cancelled before it begins
        self._note(attempt, waiting=1)
        future = run_in_executor(executor, self._run_call, unstarted, attempt, call, *args)
        future.add_done_callback(lambda _: self._stop_waiting(unstarted))
        return future

    def _stop_waiting(self, unstarted: list[RunningAttempt], *, is_running: bool | None = None) -> None:
        try:
            attempt = unstarted.pop()
        except IndexError:
            return
        self._note(attempt, waiting=-1, is_running=is_running)

    def _run_call(
        self, unstarted: list[RunningAttempt], attempt: RunningAttempt, call: Callable[..., Any], *args: Any
    ) -> object:
        """Call the function. This runs in the query thread."""
        self._stop_waiting(unstarted, is_running=True)
        try:
            return call(*args)
        finally:
            self._note(attempt, is_running=False)

    def _note(self, attempt: RunningAttempt, *, waiting: int = 0, is_running: bool | None = None) -> None:
        """Note that a call of the attempt began to wait, stopped waiting, began to run, or ended.

        The timeout is suspended while a call of the attempt waits, and none of the attempt's calls runs.
        """
        with self._lock:
            self._waiting[attempt] += waiting
            if is_running is not None:
                self._attempt_of_call = attempt if is_running else None
            if self._waiting[attempt] and self._attempt_of_call is not attempt:
                attempt.stop_clock()
            else:
                attempt.start_clock()
            if not self._waiting[attempt]:
                del self._waiting[attempt]
