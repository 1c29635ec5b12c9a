# /// script
# dependencies = ["celery==5.*", "psutil", "django==5.2.*", "psycopg[binary]==3.*"]
# [tool.peer]
# programs = ["rabbitmq-server"]
# apps = ["benchmarks.peers"]
# ///
"""Plain Celery in a Django project, with its own RabbitMQ and with settings that lose no job."""

from collections.abc import Sequence

from scripts.embedded_rabbitmq import RabbitMQ

from . import marks, rabbitmq
from .rabbitmq import app
from .work import work

TITLE = "RabbitMQ and Celery"
HISTORY = "nothing"

_nodes: list[RabbitMQ] = []


@app.task(name="noop")
def noop(number: int) -> None:
    work(number)


@app.task(name="mark")
def mark(number: int) -> None:
    marks.leave(number)


def prepare() -> None:
    _nodes.append(rabbitmq.start())


def enqueue(task: str, number: int) -> None:
    app.tasks[task].delay(number)


def enqueue_many(numbers: Sequence[int]) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for number in numbers:
            noop.apply_async((number,), producer=producer)


def worker(*, best: bool) -> list[str]:
    return rabbitmq.worker_command("benchmarks.peers.celery_rabbitmq", best=best)


def unfinished() -> int:
    counts = _nodes[0].control("list_queues", "--no-table-headers", "messages")
    return sum(map(int, counts.split()))
