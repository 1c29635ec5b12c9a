"""The options of one `runworker` command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..values.records import serves


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options that a supervisor and its workers share. Times are in seconds."""

    name: str
    """The name of the supervisor; its workers are `name/1`, `name/2`, …"""
    database: str
    """The alias of the database that holds the queue."""
    queue_names: tuple[str, ...] = ()
    """The queues, in the order in which they are served. If it is empty, all queues with jobs are served in turn."""
    external_queues: frozenset[str] = frozenset()
    """The queues whose jobs run outside of our workers. A worker serves them only if `queue_names` has them."""
    concurrency: int = 4
    """How many jobs each process runs at once in threads, and how many it runs in addition in the event loop."""
    processes: int = 1
    drain: bool = False
    """Stop when no job is left to run."""
    max_jobs: int | None = None
    """Stop each process after this many jobs."""
    max_jobs_per_worker: int | None = None
    """Replace each process after this many jobs."""
    max_memory_mb: int | None = None
    """Replace each process whose memory exceeds this."""
    listen: bool = True
    """Whether NOTIFY wakes the process. In either case the process also polls."""
    poll_interval: float = 2.0
    shutdown_timeout: float = 30.0
    worker_timeout: float = 60.0
    heartbeat_interval: float = 10.0

    @property
    def runs(self) -> Callable[..., Any] | None:
        """A function that makes the control loop of each process; `None` for a `WorkerLoop`."""
        return None

    def serves(self, queue_name: str) -> bool:
        return serves(self.queue_names, queue_name, external=self.external_queues)

    @property
    def worker_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}/{number}" for number in range(1, self.processes + 1))

    @property
    def seconds_between_heartbeats(self) -> float:
        """The time between heartbeats. A quarter of the worker timeout is the most, so that one may be lost."""
        return min(self.heartbeat_interval, self.worker_timeout / 4)
