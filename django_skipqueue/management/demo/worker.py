"""The worker of the demonstration, a process of its own that ends with the process that started it."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...conf import settings
from ...periodic.registry import entries
from ...runtime.worker_options import WorkerOptions
from ...supervisor.supervisor import Supervisor
from .tasks import QUEUE_NAMES, register

LIFELINE = "SKIPQUEUE_DEMO_LIFELINE"
"""In the environment of the worker: the read end of a pipe, whose end stops it."""

CONCURRENCY = 16


@contextmanager
def worker_process() -> Iterator[subprocess.Popen[bytes]]:
    """Run the same command once more, as the worker, until the end of this block."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], env={**os.environ, LIFELINE: str(read_end)}, pass_fds=[read_end]
    )
    os.close(read_end)
    try:
        yield process
    finally:
        os.close(write_end)
        process.wait()


def run_as_worker() -> bool:
    """If this process is the worker, serve the queues of the demonstration until its starter ends. Else False."""
    lifeline = os.environ.pop(LIFELINE, "")
    if not lifeline:
        return False
    logging.getLogger("django_skipqueue").setLevel(logging.CRITICAL)  # its jobs are meant to fail
    entries.start_anew()  # the schedules of the project are fired by its own workers
    register()
    options = WorkerOptions(
        name="demo",
        database=settings.database,
        queue_names=QUEUE_NAMES,
        concurrency=CONCURRENCY,
        poll_interval=settings.poll_interval,
        shutdown_timeout=1.0,
        worker_timeout=settings.worker_timeout,
        heartbeat_interval=settings.heartbeat_interval,
    )
    Supervisor(options, lifeline=int(lifeline)).run()
    return True
