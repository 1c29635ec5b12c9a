# /// script
# dependencies = ["celery[redis]==5.*"]
# [tool.peer]
# programs = ["redis-server"]
# ///
"""Celery with its own Redis server, which has the default settings except for its address."""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from celery import Celery, group

from . import marks

TITLE = "Celery + Redis"
HISTORY = "nothing"

SOCKET = Path(tempfile.gettempdir()) / f"benchmarks-{os.environ['PGDATABASE']}.sock"

app = Celery("benchmarks", broker=f"redis+socket://{SOCKET}")
app.conf.task_ignore_result = True


@app.task(name="noop")
def noop(number: int) -> None:
    pass


@app.task(name="mark")
def mark(number: int) -> None:
    marks.leave(number)


def prepare() -> None:
    folder = Path(os.environ[marks.FILE]).parent
    command = ["redis-server", "--port", "0", "--unixsocket", str(SOCKET), "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    atexit.register(SOCKET.unlink, missing_ok=True)
    atexit.register(server.wait)
    atexit.register(server.kill)  # called before `wait`; Redis refuses to end on SIGTERM if its folder is gone
    deadline = time.monotonic() + 30
    while not SOCKET.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("Redis did not start.")
        time.sleep(0.05)


def enqueue(task: str, number: int) -> None:
    app.tasks[task].delay(number)


def enqueue_many(numbers: Sequence[int]) -> None:
    group(noop.s(number) for number in numbers).apply_async()


def worker(*, best: bool) -> list[str]:
    options = ("--pool", "threads", "--without-gossip", "--without-mingle", "--prefetch-multiplier", "100")
    command = [sys.executable, "-m", "celery", "--app", "benchmarks.peers.celery", "worker"]
    return [*command, *(options if best else ())]


def unfinished() -> int:
    with app.connection_for_read() as connection:
        redis = connection.default_channel.client
        return int(redis.llen("celery")) + int(redis.hlen("unacked"))
