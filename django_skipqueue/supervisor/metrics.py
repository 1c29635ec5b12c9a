"""The figures of one `runworker`, as metrics.

Invariant: one series for each metric and worker, and no other label.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from ..values.exposition import Family, Metric
from ..worker.memory import resident_bytes
from .process import WorkerProcess

PREFIX = "skipqueue_worker_"
LABELS = ("worker",)

Value = Callable[[WorkerProcess], float | None]
"""The value for a worker; `None`: it has none."""


def _gauge(name: str, text: str) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", text, LABELS)


def _of_running(value: Value) -> Value:
    """The same value, for a worker whose process runs."""
    return lambda process: value(process) if process.has_started else None


METRICS: tuple[tuple[Metric, Value], ...] = (
    (_gauge("up", "Whether the worker process runs."), lambda process: process.has_started),
    (
        Metric(f"{PREFIX}jobs_done_total", "counter", "Attempts that the worker has settled.", LABELS),
        lambda process: process.jobs_done,
    ),
    (_gauge("jobs_running", "Jobs that run."), _of_running(lambda process: process.standby.running)),
    (_gauge("slots", "Jobs of one kind that may run at once."), lambda process: process.concurrency),
    (_gauge("slots_free", "Jobs that could begin at once."), _of_running(lambda process: process.standby.slots)),
    (
        Metric(f"{PREFIX}restarts_total", "counter", "Processes after the first one.", LABELS),
        lambda process: max(process.starts - 1, 0),
    ),
    (
        _gauge("memory_bytes", "Resident size of the worker process."),
        _of_running(lambda process: resident_bytes(process.pid)),
    ),
    (
        _gauge("heartbeat_age_seconds", "Seconds since the supervisor wrote the worker's heartbeat."),
        _of_running(lambda process: max(time.monotonic() - process.standby.heartbeat_at, 0.0)),
    ),
)
"""Each metric that has a series for each worker, and its value."""

DATABASE_UP = Metric(f"{PREFIX}database_up", "gauge", "Whether the supervisor's last statement succeeded.")
LOOP_AGE = Metric(f"{PREFIX}loop_age_seconds", "gauge", "Seconds since the supervisor's control loop turned.")


def figures(processes: Sequence[WorkerProcess], *, turned_at: float, has_database: bool) -> Iterator[Family]:
    """All metrics. `turned_at`: when the supervisor's control loop last turned, in monotonic seconds."""
    for metric, value in METRICS:
        found = ((process.name, value(process)) for process in processes)
        yield Family(metric, {(name,): float(number) for name, number in found if number is not None})
    yield Family(DATABASE_UP, {(): float(has_database)})
    yield Family(LOOP_AGE, {(): max(time.monotonic() - turned_at, 0.0)})
