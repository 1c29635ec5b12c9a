"""Users and operators may leave transactions open: workers and supervisors do not wait for them."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.console.verbs.table import delete_jobs
from django_skipqueue.models import Job, Queue, Worker
from django_skipqueue.queue.queues import paused_queues
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ..app import jobs
from ..app.rows import lease_of, make_job, make_worker
from ..app.sessions import Session
from ..harness.partitions import make_partitions

store = Store("default")
ONE_HOUR = timedelta(hours=1)
WORKER_ROW = {"name": "w", "hostname": "h", "pid": 1, "queues": [], "concurrency": 4}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def short_lock_timeout() -> Iterator[None]:
    """Make each statement of this connection fail that waits longer than 300 ms for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '300ms'")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")


def ids_of_all_jobs() -> list[int]:
    return list(Job.objects.order_by("pk").values_list("pk", flat=True))


ACTIONS: dict[str, Callable[[], object]] = {
    "defer": lambda: jobs.noop.using(unique_key="a key").defer(),
    "restart": lambda: [worker.restart() for worker in Worker.objects.order_by("pk")],
    "stop": lambda: [worker.stop() for worker in Worker.objects.order_by("pk")],
    "pause": lambda: Queue.pause("default", for_=ONE_HOUR),
    "pause and resume": lambda: (Queue.pause("default"), Queue.resume("default")),
    "retry": lambda: store.retry(ids_of_all_jobs()),
    "discard": lambda: store.discard(ids_of_all_jobs()),
    "cancel": lambda: store.cancel(ids_of_all_jobs()),
    "run now": lambda: store.run_now(ids_of_all_jobs()),
    "postpone": lambda: store.postpone(ids_of_all_jobs(), timedelta(days=1)),
    "change the queue": lambda: store.change_queue(ids_of_all_jobs(), "other"),
    "change the priority": lambda: store.change_priority(ids_of_all_jobs(), 7),
    "delete": lambda: delete_jobs(Store.default(), ids_of_all_jobs()),
    "prune": lambda: store.prune(),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS.keys())
def test_no_open_transaction_of_an_operator_blocks_workers_or_supervisors(
    session: Callable[[], Session],
    short_lock_timeout: None,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    action: Any,
) -> None:
    worker, dead_worker = make_worker(), make_worker(heartbeat=-ONE_HOUR)
    for status in ("queued", "scheduled", "running", "completed", "failed"):
        make_job(status)
    make_job("running", locked_by=dead_worker.pk, locked_at=-ONE_HOUR)
    operator = session()
    operator.begin()
    operator(action)
    job_to_settle, job_to_release = (make_job("running", locked_by=worker.pk) for _ in range(2))
    make_job("scheduled", run_after=-ONE_HOUR)
    make_job()

    store.heartbeat_workers([WORKER_ROW | {"id": worker.pk}, WORKER_ROW | {"id": "new"}])
    assert store.heartbeat_worker(worker.pk)
    assert store.heartbeats()[1].keys() == {worker.pk, dead_worker.pk, "new"}
    assert store.settle([Settlement(*lease_of(job_to_settle), COMPLETED)]) == {job_to_settle.pk}
    assert store.release([lease_of(job_to_release)]) == {job_to_release.pk}
    assert store.claim(queue_names=["default"], limit=10, worker_id=worker.pk)
    assert store.admit().by_queue
    store.release_orphans(worker.pk, known=[])
    store.recover(worker_ids=[dead_worker.pk])
    store.recover()
    store.still_holding([dead_worker.pk])
    store.prune_workers([dead_worker.pk], age=60)
    store.delete_workers([worker.pk, dead_worker.pk])
    paused_queues(store)
    store.queues_with_jobs()
    store.prune()
    settings.SKIPQUEUE = {"ARCHIVE": None}
    make_partitions()
    assert "lock timeout" not in caplog.text
    operator.rollback()
