"""Starts the processes that run the demo's jobs, as an operator would, and ends them with the demo."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from django.conf import settings
from django.core.management.base import CommandError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 60.0
"""Seconds that a process may take to stop. It usually takes one or two."""


CELERY_WORKER = ["-m", "celery", "-A", "shop", "worker", "--queues", "emails", "--concurrency", "4"]


def commands() -> dict[str, list[str]]:
    """The commands that run the jobs, by name. A later process needs the earlier ones."""
    if settings.CARRIER:
        return {
            "worker": manage("runworker", "--queues", "default", "--no-reload"),
            "relay": manage("runrelay"),
            "Celery worker": [sys.executable, *CELERY_WORKER],
        }
    return {"worker": manage("runworker", "--queues", "default,emails", "--no-reload")}


def manage(*arguments: str) -> list[str]:
    """A command of manage.py."""
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]


@contextmanager
def running(log: Path, environment: Mapping[str, str], *, time_limit: float) -> Iterator[Callable[[], None]]:
    """Run all processes within the block. Yields a function that raises `CommandError` if a process or the time ended.

    A signal raises `CommandError` as well. Ctrl-C does not reach the processes: a second signal would stop a worker at
    once.
    """
    deadline = time.monotonic() + time_limit
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def still_run() -> None:
        for name, process in processes.items():
            if process.poll() is not None:
                raise CommandError(f"The {name} stopped by itself; {log} says why.")
        if time.monotonic() > deadline:
            raise CommandError(f"Not done after {time_limit:g} seconds; {log} may say why.")

    before = {signum: signal.signal(signum, stop) for signum in SIGNALS}
    try:
        with log.open("w") as output:
            for name, command in commands().items():
                processes[name] = subprocess.Popen(
                    command,
                    cwd=settings.BASE_DIR,
                    env={**os.environ, **environment},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        yield still_run
    finally:
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        end([*processes.values()])
        for signum, handler in before.items():
            signal.signal(signum, handler)


def stop(signum: int, _: FrameType | None) -> None:
    """End the demo."""
    raise CommandError("Stopped.", returncode=128 + signum)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes, the last one first: the relay must settle the jobs that Celery's workers have finished."""
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
