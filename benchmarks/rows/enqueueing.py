"""How fast jobs are deferred."""

import statistics
import time
from collections.abc import Callable

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job

from .. import jobs
from ..figures import Figures
from ..sizes import Sizes


def defer(sizes: Sizes) -> Figures:
    """`.defer()`, each in a transaction of its own, ÷ a bare `create()` of the same columns."""
    return _beside_create(min(sizes.jobs, 2_000))


def defer_in_transaction(sizes: Sizes) -> Figures:
    """The same within one transaction."""
    with transaction.atomic():
        return _beside_create(min(sizes.jobs, 10_000))


def defer_many(sizes: Sizes) -> Figures:
    """All jobs in one call of `.defer_many()`."""
    calls = [(number,) for number in range(sizes.jobs)]
    started = time.perf_counter()
    jobs.noop.defer_many(calls)
    return {"jobs/s": sizes.jobs / (time.perf_counter() - started)}


def queries(_sizes: Sizes) -> Figures:
    """What one `.defer()` asks of the database: in its transaction, and in all, the NOTIFY after the commit too."""
    jobs.noop.defer(0)
    with transaction.atomic(), CaptureQueriesContext(connection) as inside:
        jobs.noop.defer(1)
    with CaptureQueriesContext(connection) as in_all:
        jobs.noop.defer(2)
    return {"in the transaction": len(inside), "in all": len(in_all)}


def _beside_create(rounds: int) -> Figures:
    """One of each in turn, so that whatever else the machine does hits both; of each the median."""
    pairs = [(_seconds(jobs.noop.defer, number), _seconds(_create, number)) for number in range(-20, rounds)]
    ours, bare = (statistics.median(seconds) for seconds in zip(*pairs[20:], strict=True))
    return {"jobs/s": 1 / ours, "bare create()/s": 1 / bare, "defer ÷ create": bare / ours}


def _create(number: int) -> None:
    Job.objects.create(
        queue_name="bare",
        task="bare",
        args=[number],
        kwargs={},
        status="queued",
        priority=0,
        max_attempts=10,
        unique_key=None,
        metadata={},
    )


def _seconds(call: Callable[[int], object], number: int) -> float:
    started = time.perf_counter()
    call(number)
    return time.perf_counter() - started
