"""The rows of a supervisor's workers, which it writes with their heartbeats."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.worker_options import WorkerOptions
from ..worker.memory import resident_mb_of
from ..worker.own_row import described
from .process import WorkerProcess


def rows_of(options: WorkerOptions, processes: Sequence[WorkerProcess]) -> list[Mapping[str, Any]]:
    return [
        described(
            options,
            id=process.id,
            name=process.name,
            concurrency=process.concurrency,
            pid=process.pid,
            memory_mb=resident_mb_of(process.pid),
            jobs_done=process.stamps.last().jobs_done,
        )
        for process in processes
        if process.pid
    ]
