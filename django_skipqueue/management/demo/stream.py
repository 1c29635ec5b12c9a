"""Defers the jobs and the batches of the demonstration at a rate, and removes them.

Each job has a retention of its own, so that supervisors prune it within a day, even if nobody removes it.
"""

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

from ...models import FINISHED, Schedule
from ...operators.criteria import Criteria
from ...operators.deleting import delete_jobs
from ...operators.job_states import STATES
from ...store import Store
from ...store.statements import BATCH
from ...values.served import DEMO_PREFIX
from .batches import defer_batches, finish_batches
from .tasks import KINDS, RANDOM, TASK_PREFIX

UNFINISHED_STATES = [state for state in STATES if state not in FINISHED]

MOMENT = 0.25
"""Seconds."""


def defer_for(duration: timedelta, *, rate: float) -> Iterator[int]:
    """Defer `rate` jobs a second, and batches beside them. Yields the number of all so far, every moment."""
    started, last, deferred = time.monotonic(), 0, 0
    while (elapsed := time.monotonic() - started) < duration.total_seconds():
        wanted = int(elapsed * rate) + 1
        numbers = range(last + 1, wanted + 1)
        _defer(numbers)
        deferred += len(numbers) + defer_batches(numbers)
        last = wanted
        yield deferred
        time.sleep(MOMENT)


def delete_schedules() -> None:
    """Delete the schedules of demonstrations: their worker is gone."""
    Schedule.objects.filter(task__startswith=TASK_PREFIX, source="code").delete()


def cancel_unfinished(*, by: str) -> int:
    """Cancel the jobs that nobody will run any more, and then the callbacks of their batches; returns their number."""
    store = Store.default()
    number = 0
    for _ in range(2):
        number += sum(len(store.cancel(ids, by=by, reason="the demo is over")) for ids in _windows(UNFINISHED_STATES))
        finish_batches()
    return number


def delete_all() -> int:
    """Delete all jobs of demonstrations but those that run; returns their number."""
    return sum(len(delete_jobs(ids)) for ids in _windows(STATES))


def _defer(numbers: range) -> None:
    store = Store.default()
    chosen = RANDOM.choices(KINDS, [kind.share for kind in KINDS], k=len(numbers))
    for kind in KINDS:
        calls = [kind.encoded(number) for number, each in zip(numbers, chosen, strict=True) if each is kind]
        if calls:
            store.enqueue_many(kind.spec(), calls)


def _windows(states: Iterable[str]) -> Iterator[list[int]]:
    """The ids of the jobs in the queues of demonstrations, a window at a time, in the order in which jobs go on."""
    for state in states:
        criteria = Criteria(state=state)
        for window in criteria.windows():
            jobs = criteria.within(window).filter(queue_name__startswith=DEMO_PREFIX)
            ids = list(jobs.values_list("pk", flat=True))
            yield from (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
