"""Batches and chains: how much slower the jobs of a batch are, and how soon a callback or the next step begins."""

import statistics
import time
from functools import partial
from itertools import pairwise
from typing import Any

from django_skipqueue import Batch, chain
from django_skipqueue.models import Job

from .. import jobs
from ..figures import Figures
from ..sizes import Sizes
from ..workers import drain, is_empty, running_worker, wait_until

JOBS_OF_A_BATCH = 3
"""The number of jobs in each batch whose callback is timed."""


def batches(sizes: Sizes) -> Figures:
    """A drain of jobs of one batch ÷ a plain one; from the end of a job to the start of the one that waits for it."""
    plain, in_one_batch = [], []
    for _ in range(sizes.rounds):  # alternately, because the speed of the machine may change
        plain.append(drain(jobs.noop, sizes.jobs)["jobs/s"])
        in_one_batch.append(drain(_InOneBatch(), sizes.jobs)["jobs/s"])
    return {
        "jobs/s in one batch": statistics.median(in_one_batch),
        "in one batch ÷ plain": statistics.median(in_one_batch) / statistics.median(plain),
        **_waits(min(sizes.jobs, 100)),
    }


class _InOneBatch:
    """Stands for the task `noop`, with all jobs in one batch. The callback is in another queue, so it is not timed."""

    def __init__(self) -> None:
        self._batch = Batch(on_finish=jobs.noop.using(queue_name="callbacks").s(0))

    def defer_many(self, calls: list[tuple[int]]) -> None:
        """Defer jobs of these calls, and add them to the batch."""
        with self._batch:
            jobs.noop.defer_many(calls)


def _is_over(batch: Batch) -> bool:
    return batch.jobs.completed().count() == JOBS_OF_A_BATCH + 1


def _waits(count: int) -> Figures:
    """Measure, on an idle worker, how long plain jobs, callbacks of batches and the steps of a chain wait."""
    with running_worker():
        wait_until(lambda: jobs.clock.defer() and Job.objects.completed().filter(task=jobs.clock.name).exists())
        wait_until(is_empty)
        deferred: dict[int, float] = {}
        batch_ids = []
        for _ in range(count):
            now = time.time()
            deferred[jobs.clock.defer().pk] = now
            with Batch(on_finish=jobs.clock) as batch:
                jobs.clock.defer_many([()] * JOBS_OF_A_BATCH)
            batch_ids.append(batch.id)
            wait_until(partial(_is_over, batch))
        steps = chain(*[jobs.clock] * count).defer()
        wait_until(is_empty)
    started: dict[int, Any] = dict(Job.objects.filter(task=jobs.clock.name).values_list("pk", "result"))
    starts: dict[int, list[float]] = {id: [] for id in batch_ids}
    for pk, id in Job.objects.filter(batch_id__in=batch_ids).values_list("pk", "batch_id"):
        starts[id or 0].append(started[pk])
    last = [sorted(times)[-2:] for times in starts.values()]  # the times of the last job and of the callback
    return {
        "ms plain": 1000 * statistics.median(started[pk] - at for pk, at in deferred.items()),
        "ms to the callback": 1000 * statistics.median(callback - end for end, callback in last),
        "ms to the next step": 1000
        * statistics.median(started[later.pk] - started[earlier.pk] for earlier, later in pairwise(steps)),
    }
