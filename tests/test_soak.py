"""Neither a worker that runs for long nor its table grows. `make soak` runs a million jobs."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import psutil
import pytest
from django.db import connection

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from .app import jobs
from .app.waiting import wait_until
from .harness.processes import ManagePy, workers

store = Store("default")

JOBS = int(os.environ.get("SKIPQUEUE_SOAK_JOBS", "20000"))
WAVES = 10
WARM_UP = 4
"""After this number of waves, pools, caches and the table have reached their final sizes."""


LATE_ARENA_BYTES = 4 * 1024 * 1024
"""Bytes by which the memory may grow: a process allocates an arena of 3 to 4 MB once within its first 50,000 jobs. The
test still finds a leak of 600 bytes a job, and `make soak` a leak of 13."""


@dataclass(frozen=True)
class Sample:
    """The resources of the worker and of the table, after a wave of jobs has run and was pruned, and after a vacuum."""

    memory: int
    files: int
    threads: int
    table: int
    indexes: int


def run_wave(worker: psutil.Process) -> Sample:
    """Let the worker run a share of the jobs, delete the jobs, and vacuum the table. Returns the resources."""
    share = JOBS // WAVES  # eight tenths succeed, one tenth are coroutines, and one tenth fail in their first attempt
    jobs.noop.defer_many([()] * (share * 8 // 10))
    jobs.anoop.defer_many([()] * (share // 10))
    jobs.fail_times.defer_many([(1,)] * (share - share * 8 // 10 - share // 10))
    wait_until(lambda: not Job.objects.unfinished().exists(), "the wave is worked through", deadline=60 + share / 500)
    while store.prune():
        pass
    with connection.cursor() as cursor:
        cursor.execute("VACUUM skipqueue_job")
        cursor.execute("SELECT clock_timestamp()")
        (vacuumed_at,) = cursor.fetchone()
        wait_until(partial(all_have_ended, vacuumed_at), "older transactions of the server are over", deadline=300)
        cursor.execute("SELECT pg_table_size('skipqueue_job'), pg_indexes_size('skipqueue_job')")
        table, indexes = cursor.fetchone()
    return Sample(worker.memory_info().rss, worker.num_fds(), worker.num_threads(), table, indexes)


def all_have_ended(moment: datetime) -> bool:
    """Whether all transactions of the server that began before the moment are over, even in other databases.

    Until then, the next VACUUM cannot free the pages that the last VACUUM has emptied.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT NOT EXISTS (
                SELECT FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start < %s
                  AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
            )
            """,
            [moment],
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.slow  # it runs thousands of jobs
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(600 + JOBS // 200)
def test_a_worker_and_its_table_do_not_grow_with_the_number_of_jobs(
    runworker: Callable[..., ManagePy], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    process = runworker("--poll-interval", "0.5")
    (worker_row,) = workers()
    worker = psutil.Process(worker_row.pid)
    samples = [run_wave(worker) for _ in range(WAVES)]
    with capsys.disabled():
        if JOBS >= 100_000:
            print(*samples, sep="\n")  # noqa: T201 (for the user of `make soak`)
    warm_sample, last_sample = samples[WARM_UP - 1], samples[-1]
    assert worker.is_running()
    assert last_sample.memory <= warm_sample.memory * 1.05 + LATE_ARENA_BYTES, samples
    assert last_sample.files <= warm_sample.files, samples
    # asgiref starts its thread when a coroutine first needs it.
    assert last_sample.threads <= warm_sample.threads + 1, samples
    assert last_sample.table <= warm_sample.table, samples
    # If PostgreSQL reused no page, the indexes would be 2.35 times as large after six more waves.
    assert last_sample.indexes <= warm_sample.indexes * 2, samples
    process.send(signal.SIGTERM)
    assert process.wait() == 0
