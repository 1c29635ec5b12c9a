"""Defers the jobs of the demonstration at a rate, and removes them.

Each job has a retention of its own, so that supervisors prune it within a day, even if nobody removes it.
"""

import json
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

from ...models import FINISHED, Schedule
from ...operators.criteria import Criteria
from ...operators.deleting import delete_jobs
from ...operators.job_states import STATES
from ...store import Store
from ...store.statements import BATCH
from ...values.codec import encode
from ...values.records import EncodedCall, JobSpec
from ...values.served import DEMO_PREFIX
from .tasks import KINDS, RANDOM, TASK_PREFIX, Kind

RETENTION = json.dumps({status.value: timedelta(days=1).total_seconds() for status in FINISHED})

UNFINISHED_STATES = [state for state in STATES if state not in FINISHED]

BATCH_SECONDS = 0.25
"""Seconds between two batches."""


def defer_for(duration: timedelta, *, rate: float) -> Iterator[int]:
    """Defer `rate` jobs a second. Yields their number so far, after each batch."""
    started, deferred = time.monotonic(), 0
    while (elapsed := time.monotonic() - started) < duration.total_seconds():
        wanted = int(elapsed * rate) + 1
        _defer(range(deferred + 1, wanted + 1))
        deferred = wanted
        yield deferred
        time.sleep(BATCH_SECONDS)


def delete_schedules() -> None:
    """Delete the schedules of demonstrations: their worker is gone."""
    Schedule.objects.filter(task__startswith=TASK_PREFIX, source="code").delete()


def cancel_unfinished(*, by: str) -> int:
    """Cancel the jobs that nobody will run any more; returns their number."""
    store = Store.default()
    return sum(len(store.cancel(ids, by=by, reason="the demo is over")) for ids in _batches(UNFINISHED_STATES))


def delete_all() -> int:
    """Delete all jobs of demonstrations but those that run; returns their number."""
    return sum(len(delete_jobs(ids)) for ids in _batches(STATES))


def _defer(numbers: range) -> None:
    store = Store.default()
    chosen = RANDOM.choices(KINDS, [kind.share for kind in KINDS], k=len(numbers))
    for kind in KINDS:
        calls = [_encoded(kind, number) for number, each in zip(numbers, chosen, strict=True) if each is kind]
        if calls:
            store.enqueue_many(_spec(kind), calls)


def _spec(kind: Kind) -> JobSpec:
    return JobSpec(
        kind.name,
        queue_name=kind.queue_name,
        max_attempts=kind.max_attempts,
        run_after=timedelta(seconds=RANDOM.uniform(0, kind.longest_delay)) if kind.longest_delay else None,
        retention=RETENTION,
    )


def _encoded(kind: Kind, number: int) -> EncodedCall:
    return EncodedCall("[]", encode("the arguments", kind.call(number)), None)


def _batches(states: Iterable[str]) -> Iterator[list[int]]:
    """The ids of the jobs in the queues of demonstrations, a window at a time, in the order in which jobs go on."""
    for state in states:
        criteria = Criteria(state=state)
        for window in criteria.windows():
            jobs = criteria.within(window).filter(queue_name__startswith=DEMO_PREFIX)
            ids = list(jobs.values_list("pk", flat=True))
            yield from (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
