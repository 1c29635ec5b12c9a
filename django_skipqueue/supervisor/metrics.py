"""The figures of one `runworker`, as metrics.

Invariant: one series for each metric and worker. With several databases each has the label `database` as well.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from ..values.exposition import Family, Metric
from ..worker.memory import resident_bytes
from .state import DatabaseState, SupervisorState, WorkerState

PREFIX = "skipqueue_worker_"
LABELS = ("worker",)

Value = Callable[[WorkerState], float | None]
"""The value for a worker; `None`: it has none."""


def _gauge(name: str, text: str) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", text, LABELS)


def _of_running(value: Value) -> Value:
    """The value for a worker whose process runs; `None` for all others."""
    return lambda worker: value(worker) if worker.has_started else None


def _of_relay(value: Value) -> Value:
    """The value for a relay whose process runs; `None` for all others."""
    return lambda worker: value(worker) if worker.has_started and worker.is_relay else None


def _of_worker(value: Value) -> Value:
    """The value for a worker; `None` for a relay, which runs no jobs."""
    return lambda worker: None if worker.is_relay else value(worker)


METRICS: tuple[tuple[Metric, Value], ...] = (
    (_gauge("up", "Whether the worker process runs."), lambda worker: worker.has_started),
    (
        Metric(f"{PREFIX}jobs_done_total", "counter", "Attempts that the worker has settled.", LABELS),
        lambda worker: worker.jobs_done,
    ),
    (_gauge("jobs_running", "Jobs that run."), _of_worker(_of_running(lambda worker: worker.jobs_running))),
    (_gauge("slots", "Jobs of one kind that may run at once."), _of_worker(lambda worker: worker.slots)),
    (_gauge("slots_free", "Jobs that could begin at once."), _of_worker(_of_running(lambda worker: worker.slots_free))),
    (
        _gauge("jobs_carried", "Jobs with the carrier or on their way there, by all of its relays."),
        _of_relay(lambda worker: worker.jobs_running),
    ),
    (
        _gauge("window_room", "Jobs that the relay could hand over at once."),
        _of_relay(lambda worker: worker.slots_free),
    ),
    (
        Metric(f"{PREFIX}restarts_total", "counter", "Processes after the first one.", LABELS),
        lambda worker: max(worker.starts - 1, 0),
    ),
    (
        _gauge("memory_bytes", "Resident size of the worker process."),
        _of_running(lambda worker: resident_bytes(worker.pid)),
    ),
    (
        _gauge("heartbeat_age_seconds", "Seconds since the supervisor wrote the worker's heartbeat."),
        _of_running(lambda worker: max(time.monotonic() - worker.heartbeat_at, 0.0)),
    ),
)
"""Each metric that has a series for each worker, and its value."""

DATABASE_UP = Metric(f"{PREFIX}database_up", "gauge", "Whether the supervisor's last statement succeeded.")
LOOP_AGE = Metric(f"{PREFIX}loop_age_seconds", "gauge", "Seconds since the supervisor's control loop turned.")


def figures(states: Sequence[SupervisorState], *, names_databases: bool) -> Iterator[Family]:
    """All metrics of these supervisors. `names_databases`: with the label `database`."""

    def family(metric: Metric, values: Sequence[tuple[SupervisorState, tuple[str, ...], float]]) -> Family:
        if not names_databases:
            return Family(metric, {labels: value for _, labels, value in values})
        named = metric._replace(labels=("database", *metric.labels))
        return Family(named, {(state.alias, *labels): value for state, labels, value in values})

    for metric, value in METRICS:
        found = [(state, worker.name, value(worker)) for state in states for worker in state.workers]
        yield family(metric, [(state, (name,), float(number)) for state, name, number in found if number is not None])
    yield family(DATABASE_UP, [(state, (), float(state.database is DatabaseState.REACHED)) for state in states])
    now = time.monotonic()
    yield family(LOOP_AGE, [(state, (), max(now - state.turned_at, 0.0)) for state in states])
