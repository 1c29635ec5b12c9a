"""The options of one `runworker` command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..values.records import serves


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options shared by a supervisor and its workers. Times are seconds."""

    name: str
    """The name of the supervisor; its workers are `name/1`, `name/2`, …"""
    database: str
    """The alias of the database that holds the queue."""
    queue_names: tuple[str, ...] = ()
    """The queues, in the order in which they are served; empty: every queue that has jobs, in turn."""
    external_queues: frozenset[str] = frozenset()
    """The queues whose jobs run outside of the workers. A worker serves them only if `queue_names` has them."""
    concurrency: int = 4
    """Slots in each process: this many threads, and also this many coroutines."""
    processes: int = 1
    drain: bool = False
    """Stop when nothing is runnable."""
    max_jobs: int | None = None
    """Stop each process after this many jobs."""
    max_jobs_per_worker: int | None = None
    """Replace each process after this many jobs."""
    max_memory_mb: int | None = None
    """Replace each process whose resident size exceeds this."""
    listen: bool = True
    """Whether NOTIFY wakes the process. The process polls in either case."""
    poll_interval: float = 2.0
    shutdown_timeout: float = 30.0
    worker_timeout: float = 60.0
    heartbeat_interval: float = 10.0

    @property
    def runs(self) -> Callable[..., Any] | None:
        """Makes the control loop of each process, with the arguments of `ControlLoop`; `None`: a `WorkerLoop` runs."""
        return None

    def serves(self, queue_name: str) -> bool:
        return serves(self.queue_names, queue_name, external=self.external_queues)

    @property
    def worker_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}/{number}" for number in range(1, self.processes + 1))

    @property
    def seconds_between_heartbeats(self) -> float:
        """The time between heartbeats, at most a quarter of the worker timeout: one lost heartbeat does no harm."""
        return min(self.heartbeat_interval, self.worker_timeout / 4)
