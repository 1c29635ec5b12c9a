"""The cost of removing finished jobs: to delete them, to archive them, and to empty or drop partitions of the archive.

Both rows prune the same jobs in one process, while a worker runs a single job fifty times a second.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from django.db import connection, connections
from django.test.utils import override_settings

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from .. import jobs
from ..databases import written_ahead
from ..figures import Figures, percentile
from ..sizes import Sizes
from ..workers import running_worker, settle_down, wait_until

# Jobs completed an hour and more ago. The retention of this measurement is over, but not the worker's, so only this
# process prunes them.
FILL = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, attempts, lease, run_after, enqueued_at, locked_by, started_at, finished_at,
    result
)
SELECT
    'default', 'shop.orders.jobs.send_receipt', '[]',
    jsonb_build_object('order_id', n, 'email', n || '@example.com', 'language', 'en'), 'completed', 1, 2, ended, ended,
    'web-1/1:0123456789ab', ended - interval '30 ms', ended, '{"sent": true}'
FROM generate_series(1, %s) AS n, LATERAL (SELECT now() - interval '1 hour' - n * interval '1 ms' AS ended) AS times
"""

SIZES = """
SELECT coalesce(sum(pg_table_size(oid)), 0)::float8, coalesce(sum(pg_indexes_size(oid)), 0)::float8
FROM pg_class
WHERE relkind = 'r' AND relname LIKE %s
"""

PARTITIONS = "SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'skipqueue_archivedjob'::regclass"

RETENTION = {"completed": timedelta(minutes=30)}


def delete(sizes: Sizes) -> Figures:
    """Finished jobs are deleted, and the table is vacuumed."""
    return _pruned(sizes, archive=False)


def archive(sizes: Sizes) -> Figures:
    """Finished jobs move to the archive, the table is vacuumed, and the partitions are emptied, and then dropped."""
    figures = _pruned(sizes, archive=None)
    table, indexes = _sizes("skipqueue_archivedjob_2%")
    figures["bytes a row in the archive"] = table / sizes.pruned
    figures["bytes in its indexes"] = indexes / sizes.pruned
    with connection.cursor() as cursor:
        cursor.execute(PARTITIONS)
        partitions = [name for (name,) in cursor.fetchall()]
        written, began = written_ahead(), time.perf_counter()
        for name in partitions:
            cursor.execute(f"DELETE FROM {name}")
        figures["ms to delete their rows"] = (time.perf_counter() - began) * 1000
        figures["WAL bytes a row to delete them"] = (written_ahead() - written) / sizes.pruned
        written, began = written_ahead(), time.perf_counter()
        for name in partitions:
            cursor.execute(f"DROP TABLE {name}")
        figures["ms to drop them all"] = (time.perf_counter() - began) * 1000
        figures["WAL bytes to drop them"] = written_ahead() - written
    return figures


def _pruned(sizes: Sizes, *, archive: Any) -> Figures:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [sizes.pruned])
    settle_down()
    table, indexes = _sizes("skipqueue_job")
    written = written_ahead()
    with running_worker(), ThreadPoolExecutor(1) as thread:
        wait_until(lambda: jobs.clock.defer() and Job.objects.filter(task=jobs.clock.name).completed().exists())
        with override_settings(SKIPQUEUE={"RETENTION": RETENTION, "ARCHIVE": archive}):
            pruning = thread.submit(_prune)
            waited = _latencies(pruning)
    pruned = written_ahead()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM skipqueue_job")
    return {
        "rows/s": sizes.pruned / pruning.result(),
        "ms p50 to start a job beside it": percentile(waited, 0.5) * 1000,
        "ms p99": percentile(waited, 0.99) * 1000,
        "WAL bytes a row": (pruned - written) / sizes.pruned,
        "to vacuum": (written_ahead() - pruned) / sizes.pruned,
        "bytes a row in the job table": table / sizes.pruned,
        "bytes in the indexes": indexes / sizes.pruned,
    }


def _prune() -> float:
    """Prune all finished jobs. Returns the seconds that this took."""
    began = time.perf_counter()
    pruner = Pruner(Store("default"))
    pruner.batch()
    while pruner.has_more:
        pruner.batch()
    connections.close_all()
    return time.perf_counter() - began


def _latencies(pruning: "Future[float]") -> list[float]:
    """Defer jobs until the pruning is done. Returns the seconds from each call to the first line of its task."""
    called = {}
    while not pruning.done():
        now = time.time()
        called[jobs.clock.defer().pk] = now
        time.sleep(0.02)
    wait_until(lambda: not Job.objects.unfinished().exists())
    results = Job.objects.filter(pk__in=called).values_list("pk", "result")
    return [result - called[pk] for pk, result in results if isinstance(result, float)]


def _sizes(name: str) -> tuple[float, float]:
    """The bytes of the tables whose names match this pattern, and of their indexes."""
    with connection.cursor() as cursor:
        cursor.execute(SIZES, [name])
        table, indexes = cursor.fetchone()
    return table, indexes
