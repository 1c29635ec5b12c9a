"""The load: it defers jobs of every kind, one by one and many at once, cancels and retries jobs, and rolls back.

Invariant: the transaction that defers a job also writes a row called a promise, so that the promises say which jobs
were committed, even if the commit seemed to fail.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from django.db import Error, connection, transaction

from django_skipqueue import Batch, Task, chain
from django_skipqueue.jobs.task_call import TaskCall
from django_skipqueue.models import Job, Queue
from django_skipqueue.parts.batches.options import AfterFailure
from django_skipqueue.parts.steps.signals import send_signal
from django_skipqueue.queue.store import Store

from . import jobs
from .evidence import CANCELLED, URGENT
from .promises import promise, promise_all, promise_order, promise_signal

store = Store("default")

QUICK_JOB_COUNT = 20
"""The number of quick jobs that are deferred together; nine of ten jobs are quick ones."""

URGENT_INTERVAL = 0.5
"""Seconds between two urgent jobs."""


LIMITED_QUEUE = "narrow"
"""The name of a queue that has a limit (see `settings`), and that the load pauses sometimes."""

QUEUES = ("default", LIMITED_QUEUE)
"""The queues of jobs with a limit or a rate."""


class Rollback(Exception):
    """Rolls back a transaction, which must leave nothing."""


class Load:
    """Defers `rate` jobs a second in a thread; after an outage it catches up."""

    def __init__(self, rng: random.Random, *, rate: float, has_timeouts: bool = False, has_steps: bool = False) -> None:
        """has_timeouts: whether some jobs exceed their timeout. has_steps: whether some jobs have steps."""
        self._rng = rng
        self._rate = rate
        self._is_over = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._running: Future[None] | None = None
        self._deferred = 0
        self._ids: list[int] = []
        self._with_steps: list[int] = []
        self._ordered_ids: list[int] = []
        """Jobs of batches and chains. The load does not retry these jobs, because retries would change their order."""
        # Each method that defers or changes jobs, and its weight in the random choice.
        kinds: dict[Callable[[], None], int] = {
            self._defer_quick: 50,
            self._defer_work: 20,
            self._defer_work_async: 10,
            self._defer_work_atomic: 16,
            self._defer_work_completing: 6,
            self._defer_long_work: 8,
            self._defer_write_row: 8,
            self._defer_for_later: 8,
            self._defer_unique: 8,
            self._defer_stumble: 5,
            self._defer_doze: 4,
            self._defer_limited: 10,
            self._defer_in_order: 10,
            self._defer_in_strict_order: 8,
            self.mend: 4,
            self._defer_rated: 5,
            self._defer_rated_and_limited: 3,
            self._defer_into_limited_queue: 10,
            self._defer_fair: 1,
            self._defer_batch: 4,
            self._defer_chain: 4,
            self._defer_fail: 1,
            self._defer_give_up: 1,
            self._defer_ten: 1,
            self._roll_back: 3,
            self._cancel_recent: 4,
            self._retry_recent: 1,
            self._pause_queue: 1,
        }
        kinds |= {self._defer_overrun: 1} if has_timeouts else {}
        kinds |= {self._defer_go_on: 8, self._signal: 10} if has_steps else {}
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def start(self) -> None:
        """Start the thread of the load."""
        self._running = self._thread.submit(self._run)

    def stop(self) -> None:
        """Stop the load, and wait for its last transaction. Raises the error that ended the load, if any."""
        self._is_over.set()
        if self._running is not None:
            self._running.result()

    def _run(self) -> None:
        began = time.monotonic()
        urgent_at = began
        while not self._is_over.wait(0.02):
            try:
                while self._deferred < (time.monotonic() - began) * self._rate and not self._is_over.is_set():
                    if urgent_at <= time.monotonic():
                        urgent_at = time.monotonic() + URGENT_INTERVAL
                        self._defer_urgent()
                    self._rng.choices(self._kinds, self._weights)[0]()
            except Error:  # PostgreSQL is not available now
                connection.close()
        connection.close()

    def _defer(self, task: Task[..., Any], *arguments: float) -> None:
        with transaction.atomic():
            job = task.defer(*arguments)
            promise([job.pk], job.task, created=job.created, priority=job.priority)
        self._note_deferred(job.pk)

    def _note_deferred(self, *ids: int) -> None:
        self._deferred += len(ids)
        self._ids = [*self._ids[-200:], *ids]

    def _note_deferred_in_order(self, ids: list[int]) -> None:
        self._deferred += len(ids)
        self._ordered_ids = [*self._ordered_ids[-20:], *ids]

    # One method for each kind of job

    def _short_time(self) -> float:
        return self._rng.uniform(0, 0.02)

    def _defer_work(self) -> None:
        self._defer(jobs.work.using(priority=self._rng.choice((0, 0, 0, 5, -5))), self._short_time())

    def _defer_work_async(self) -> None:
        self._defer(jobs.work_async, self._short_time())

    def _defer_work_atomic(self) -> None:
        self._defer(jobs.work_atomic, self._short_time())

    def _defer_work_completing(self) -> None:
        self._defer(jobs.work_completing, self._short_time())

    def _defer_long_work(self) -> None:
        tasks = (jobs.work, jobs.work_async, jobs.work_atomic, jobs.work_completing)
        self._defer(self._rng.choice(tasks), self._rng.uniform(0.2, 1.5))

    def _defer_for_later(self) -> None:
        self._defer(jobs.work.using(run_after=timedelta(seconds=self._rng.uniform(0.3, 4))), self._short_time())

    def _defer_unique(self) -> None:
        self._defer(jobs.work.using(unique_key=f"key {self._rng.randrange(8)}"), self._rng.uniform(0, 0.2))

    def _defer_stumble(self) -> None:
        self._defer(jobs.stumble, self._rng.randint(1, 3))

    def _defer_doze(self) -> None:
        self._defer(jobs.doze, self._rng.randint(1, 3))

    def _defer_limited(self) -> None:
        """Defer a job with a limit, of a random priority, in one of two queues."""
        task = jobs.limited.using(priority=self._rng.choice((0, 0, 5, -5)), queue_name=self._rng.choice(QUEUES))
        self._defer(task, self._rng.randrange(4), self._short_time())

    def _pause_queue(self) -> None:
        """Pause a queue whose jobs share permits and tokens with jobs of the other queue."""
        Queue.pause(LIMITED_QUEUE, for_=timedelta(seconds=self._rng.uniform(0.2, 2)))

    def _defer_in_order(self) -> None:
        self._defer(jobs.in_order, self._rng.randrange(4), self._rng.choice((0,) * 9 + (1,)))

    def _defer_in_strict_order(self) -> None:
        self._defer(jobs.in_strict_order, self._rng.randrange(4), self._rng.choice((0,) * 9 + (1,)))

    def mend(self) -> None:
        """Act as an operator: retry or discard failures that halt a sequence; at the end, send missing signals."""
        for id in Job.objects.filter(status="failed", limit_kind="halting").values_list("pk", flat=True):
            retry_or_discard = self._rng.choice((store.retry, store.discard))
            retry_or_discard([id])
        if self._running is None or self._running.done():  # the load has ended, so nobody else sends the signals
            for id in Job.objects.unfinished().filter(task=jobs.go_on.name).values_list("pk", flat=True):
                with transaction.atomic():
                    self._send(id, "at the end")

    def _defer_rated(self) -> None:
        """Defer more jobs with a rate than may start at once."""
        key = self._rng.randrange(3)
        task = jobs.rated.using(priority=self._rng.choice((0, 5)), queue_name=self._rng.choice(QUEUES))
        self._note_deferred(*defer_many(task, [(key, self._rng.choice((0, 0, 1))) for _ in range(4)]))

    def _defer_rated_and_limited(self) -> None:
        key = self._rng.randrange(3)
        self._note_deferred(*defer_many(jobs.rated_and_limited, [(key, self._short_time()) for _ in range(4)]))

    def _defer_into_limited_queue(self) -> None:
        self._defer(jobs.work.using(queue_name=LIMITED_QUEUE), self._short_time())

    def _defer_fair(self) -> None:
        """Defer many jobs of one tenant, and then one job of another tenant."""
        self._note_deferred(*defer_many(jobs.fair, [(0, self._short_time()) for _ in range(40)]))
        self._defer(jobs.fair, self._rng.randrange(1, 4), self._short_time())

    def _defer_batch(self) -> None:
        """Defer a batch, sometimes with a batch inside; some of the jobs do not complete."""
        with transaction.atomic(), Batch(**jobs.CALLBACKS):
            ids = promise_all(call.defer() for call in self._calls(3))
            if self._rng.random() < 0.4:
                with Batch(**jobs.CALLBACKS):
                    ids += promise_all(call.defer() for call in self._calls(2))
                    if self._rng.random() < 0.5:
                        self._defer_steps()
        self._note_deferred_in_order(ids)

    def _defer_chain(self) -> None:
        with transaction.atomic():
            ids = self._defer_steps()
        self._note_deferred_in_order(ids)

    def _defer_steps(self) -> list[int]:
        """Defer a chain of three steps, the second with two jobs."""
        first, left, right, last = self._calls(4)
        after_failure: AfterFailure = self._rng.choice(("run", "discard"))
        chain_jobs = chain(first, [left, right], last, after_failure=after_failure).defer()
        promise_order([chain_jobs[:1], chain_jobs[1:3], chain_jobs[3:]], after_failure)
        return promise_all(chain_jobs)

    def _calls(self, count: int) -> list[TaskCall]:
        kinds = [
            jobs.work.s(self._short_time()),
            jobs.work_async.s(self._short_time()),
            jobs.work_atomic.s(self._short_time()),
            jobs.stumble.s(self._rng.randint(1, 2)),
            jobs.grow.s(self._rng.randint(1, 3)),
            jobs.fail.s(),
            jobs.give_up.s(),
        ]
        return self._rng.choices(kinds, [8, 4, 4, 4, 3, 1, 1], k=count)

    def _defer_go_on(self) -> None:
        self._defer(jobs.go_on)
        self._with_steps = [*self._with_steps[-40:], self._ids[-1]]

    def _signal(self) -> None:
        """Send a signal to a random job, which may wait for it, not wait yet, have it already, or be finished."""
        if self._with_steps:
            id = self._rng.choice(self._with_steps)
            with contextlib.suppress(Rollback), transaction.atomic():
                self._send(id, f"signal {self._rng.random()}")
                if self._rng.random() < 0.3:
                    raise Rollback

    def _send(self, id: int, payload: str) -> None:
        if send_signal(store, [id], "go", payload):
            promise_signal(id, payload)

    def _defer_fail(self) -> None:
        self._defer(jobs.fail)

    def _defer_overrun(self) -> None:
        self._defer(jobs.overrun, self._rng.randint(1, 2))

    def _defer_give_up(self) -> None:
        self._defer(jobs.give_up)

    def _defer_write_row(self) -> None:
        self._defer(jobs.write_row)

    def _defer_urgent(self) -> None:
        self._defer(jobs.work.using(priority=URGENT), 0.0)

    def _defer_ten(self) -> None:
        self._note_deferred(*defer_many(jobs.work, [(self._short_time(),) for _ in range(10)]))

    def _defer_quick(self) -> None:
        self._note_deferred(*defer_many(jobs.quick, [()] * QUICK_JOB_COUNT))

    def _roll_back(self) -> None:
        with contextlib.suppress(Rollback), transaction.atomic():
            job = jobs.work.defer(0.0)
            promise([job.pk], job.task)
            raise Rollback

    def _cancel_recent(self) -> None:
        """Cancel one of the last jobs, whatever its status is."""
        if recent := [*self._ids[-30:], *self._ordered_ids[-5:]]:
            store.cancel(self._rng.sample(recent, 1), reason=CANCELLED)

    def _retry_recent(self) -> None:
        """Retry the last jobs that failed or were discarded."""
        store.retry(self._ids)


def defer_many(task: Task[..., Any], calls: Sequence[tuple[object, ...]]) -> list[int]:
    """Defer a job for each call, with its promise. Returns the ids of the jobs."""
    with transaction.atomic():
        ids = task.defer_many(calls)
        promise(ids, task.name)
    return ids
