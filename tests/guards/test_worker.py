"""What a worker does not do."""

from collections.abc import Callable
from functools import partial

import pytest

from django_skipqueue.worker.worker import WorkerLoop

from ..app import jobs
from ..app.waiting import wait_until
from ..harness.processes import statuses
from ..harness.threads import WorkerThread

pytestmark = pytest.mark.django_db(transaction=True)


def has_turned(worker: WorkerLoop, stamps: int) -> bool:
    """Whether a turn of its loop has begun since then."""
    return worker._stamps.last().number > stamps


def test_a_worker_without_a_recent_heartbeat_claims_nothing(worker_thread: Callable[..., WorkerThread]) -> None:
    def seem_dead(worker: WorkerLoop) -> None:
        worker._own_row.is_alive = lambda now: False  # type: ignore[method-assign]

    started = worker_thread(prepare=seem_dead)
    wait_until(lambda: started.listens)
    for _ in range(3):  # a turn begins with a stamp: at the end of these, two are over
        stamps = started.worker._stamps.last().number
        jobs.noop.defer()
        wait_until(partial(has_turned, started.worker, stamps))
    assert statuses() == {"queued": 3}
