"""The two peers with RabbitMQ use this module: a node for one measurement, and settings with which Celery loses no job.

With these settings a job is kept if its worker dies: the queue is on the disk (a quorum queue), the broker confirms
each message to its sender, and a worker acknowledges a message after the job.
"""

import atexit
import os
import sys

from celery import Celery

from scripts.embedded_rabbitmq import RabbitMQ

BROKER = "BENCHMARKS_BROKER"
"""Environment variable: the URL of the RabbitMQ node."""

PROCESSES = "BENCHMARKS_PROCESSES"
"""Environment variable: the number of processes of Celery's pool `prefork`. The default is one for each core."""

THREADS = 64


app = Celery("benchmarks", broker=os.environ.get(BROKER))
app.conf.update(
    task_default_queue_type="quorum",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
)


def start() -> RabbitMQ:
    """Start a RabbitMQ node, which ends with this process. This process and its children use it."""
    node = RabbitMQ.in_temporary_folder()
    atexit.register(node.remove)
    node.start()
    app.conf.broker_url = os.environ[BROKER] = node.url()
    return node


def worker_command(module: str, *options: str, best: bool) -> list[str]:
    """The command `celery worker` with the pool `prefork`, or for `best` with a pool of threads."""
    processes = os.environ.get(PROCESSES)
    prefork = ("--concurrency", processes) if processes else ()
    threads = ("--pool", "threads", "--concurrency", str(THREADS), "--without-gossip", "--without-mingle")
    return [sys.executable, "-m", "celery", "--app", module, "worker", *options, *(threads if best else prefork)]
