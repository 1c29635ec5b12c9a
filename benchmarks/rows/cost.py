"""The cost of one job: processor time of each process, and bytes of write-ahead log."""

import time
from typing import Any

import psutil
import psycopg
from django.db import connection, transaction

from django_skipqueue.models import Job, Worker

from .. import jobs
from ..databases import server, written_ahead
from ..figures import Figures
from ..sizes import Sizes
from ..workers import running_worker, wait_until

WARM = 5_000
"""Jobs that run before the measurement, so that caches are filled."""


def cost(sizes: Sizes) -> Figures:
    """Microseconds of processor time, and bytes of write-ahead log, for each job: its enqueue, and the rest."""
    with running_worker() as supervisor:
        wait_until(Worker.objects.exists)
        jobs.noop.defer_many([(number,) for number in range(WARM)])
        _wait_until_done()
        (worker,) = supervisor.children()
        with server() as watching, transaction.atomic():
            session = psutil.Process(_session(watching, "skipqueue:%"))
            own_session = psutil.Process(connection.connection.info.backend_pid)
            client_seconds, wal, session_seconds = time.process_time(), written_ahead(), cpu_seconds(own_session)
            jobs.noop.defer_many([(number,) for number in range(sizes.jobs)])
            client_seconds, wal, session_seconds = (
                time.process_time() - client_seconds,
                written_ahead() - wal,
                cpu_seconds(own_session) - session_seconds,
            )
            others = [
                other for other in own_session.parent().children() if other.pid not in (own_session.pid, session.pid)
            ]
            before = [sum(map(cpu_seconds, processes)) for processes in ([worker], [session], others)]
            written = written_ahead()
        _wait_until_done()
        after = [sum(map(cpu_seconds, processes)) for processes in ([worker], [session], others)]
        written = written_ahead() - written
    parts = [(end - start) / sizes.jobs * 1e6 for start, end in zip(before, after, strict=True)]
    return {
        "us to enqueue, client": client_seconds / sizes.jobs * 1e6,
        "us to enqueue, session": session_seconds / sizes.jobs * 1e6,
        "us of the worker": parts[0],
        "us of its session": parts[1],
        "us of PostgreSQL beside": parts[2],
        "us in all": sum(parts),
        "WAL bytes to enqueue": wal / sizes.jobs,
        "WAL bytes to claim and settle": written / sizes.jobs,
    }


def cpu_seconds(process: psutil.Process) -> float:
    """The processor time that the process has used; 0 if it has ended."""
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return 0.0


def _session(watching: psycopg.Connection[Any], name: str) -> int:
    """The process of the session with this application name."""
    [(pid,)] = watching.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s", [name])
    return int(pid)


def _wait_until_done() -> None:
    wait_until(lambda: not Job.objects.unfinished().exists(), seconds=600)
