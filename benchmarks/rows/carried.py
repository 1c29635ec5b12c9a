"""A relay to Celery: how fast it passes jobs to RabbitMQ, and how many connections to PostgreSQL it needs."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
from django.db import connection

from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.models import Job
from scripts.embedded_rabbitmq import RabbitMQ, program

from .. import jobs
from ..carried_project import BROKER, WINDOW
from ..figures import Figures
from ..sizes import Sizes
from ..workers import fill, is_empty, wait_until

CELERY_WORKERS = (1, 4)

SETTINGS = "benchmarks.carried_project"
RELAY = ("django", "runrelay", "--verbosity", "0")
CELERY = ("celery", "--app", SETTINGS, "worker", "--queues", "carried", "--pool", "threads", "--loglevel", "ERROR")


def carried(sizes: Sizes) -> Figures:
    """One relay hands jobs over to RabbitMQ; then connections to PostgreSQL while Celery's workers drain a queue."""
    if program() is None:
        print("carried: RabbitMQ is not installed; it is in Debian's package rabbitmq-server", file=sys.stderr)
        return {}
    node = RabbitMQ.in_temporary_folder()
    try:
        node.start()
        figures = {"jobs/s handed over": _hand_over(node, sizes.jobs)}
        for number in CELERY_WORKERS:
            name = f"connections, {number} Celery worker{'s' * (number > 1)}"
            figures[name] = float(_connections(node, number, sizes.jobs // 10))
    finally:
        node.remove()
    return figures


def _hand_over(node: RabbitMQ, count: int) -> float:
    """Jobs per second that a relay passes to RabbitMQ, if the window is large enough for all of them."""
    fill(jobs.noop, count)
    with _running(RELAY, _environment(node.add_vhost("hand-over"), window=count)):
        wait_until(lambda: not Job.objects.queued().exists(), seconds=600)
        wait_until(lambda: _handed_over() == count, seconds=60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM clock_timestamp() - min(started_at))::float8 FROM skipqueue_job")
            ((seconds,),) = cursor.fetchall()
    Job.objects.all().delete()
    return count / float(seconds)


def _handed_over() -> int:
    """The number of jobs that the relay has passed to Celery."""
    return Job.objects.filter(locked_by=carrier_id("celery")).count()


def _connections(node: RabbitMQ, celery_workers: int, count: int) -> int:
    """The median number of connections during a drain by Celery's workers. The tasks do not use the database.

    The relay and its supervisor have connections. For a moment the supervisor has another one, by which it tests
    whether notifications arrive. The connections are counted at least 20 times, also after a short drain.
    """
    environment = _environment(node.add_vhost(f"workers-{celery_workers}"), window=2_000)
    fill(jobs.noop, count)
    counts: list[int] = []

    def is_done() -> bool:
        counts.append(_count_other_connections())
        return len(counts) > 20 and is_empty()

    with ExitStack() as processes:
        processes.enter_context(_running(RELAY, environment))
        for number in range(celery_workers):
            processes.enter_context(_running((*CELERY, "--hostname", f"{number}@benchmarks"), environment))
        wait_until(Job.objects.filter(started_at__isnull=False).exists, seconds=60)
        wait_until(is_done, seconds=600)
    Job.objects.all().delete()
    return int(statistics.median(counts))


def _count_other_connections() -> int:
    """The number of sessions of this database, without the session of this process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        ((count,),) = cursor.fetchall()
    return int(count)


def _environment(broker: str, *, window: int) -> dict[str, str]:
    return {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, BROKER: broker, WINDOW: str(window)}


@contextmanager
def _running(command: tuple[str, ...], environment: dict[str, str]) -> Iterator[None]:
    """Run `python -m` with this command, and stop the process at the end of the block."""
    with psutil.Popen([sys.executable, "-m", *command], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
