"""A worker without a recent heartbeat claims no jobs."""

from collections.abc import Callable
from functools import partial

import pytest

from django_skipqueue.worker.worker import WorkerLoop

from ..app import jobs
from ..app.waiting import wait_until
from ..harness.processes import statuses
from ..harness.threads import WorkerThread

pytestmark = pytest.mark.django_db(transaction=True)


def next_turn_has_begun(worker: WorkerLoop, last_number: int) -> bool:
    """Whether the worker's loop has begun another turn since its last stamp had the number `stamps`."""
    return worker.stamps.last().number > last_number


def test_a_worker_without_a_recent_heartbeat_claims_nothing(worker_thread: Callable[..., WorkerThread]) -> None:
    def pretend_old_heartbeat(worker: WorkerLoop) -> None:
        worker.own_row.is_alive = lambda now: False  # type: ignore[method-assign]

    thread = worker_thread(prepare=pretend_old_heartbeat)
    wait_until(lambda: thread.listens)
    for _ in range(3):  # each turn of the loop begins with a new stamp: three new stamps mean two complete turns
        last_number = thread.worker.stamps.last().number
        jobs.noop.defer()
        wait_until(partial(next_turn_has_begun, thread.worker, last_number))
    assert statuses() == {"queued": 3}
