"""Starts a process for each suspect that a worker offers, one after the other: it runs this job and no other."""

from collections.abc import Sequence

from ..values.records import NEVER
from ..worker.loop import Periodic
from .processes import WorkerProcess

INTERVAL = 0.25
"""Seconds between two looks at the offers. A look reads shared memory."""


class RunAlone(Periodic):
    """Used by the supervisor's thread. It sends no statement."""

    name = "run_alone"
    loop_handles_errors = False

    def __init__(self, workers: Sequence[WorkerProcess], alone: WorkerProcess) -> None:
        self._workers = workers
        self._alone = alone

    def run(self, now: float) -> None:
        self.run_again_in(INTERVAL)
        if not self._alone.pid and self._alone.start_at == NEVER:
            offers = (worker.standby.take_suspect() for worker in self._workers if worker.pid)
            self._alone.suspect = next((suspect for suspect in offers if suspect), None)
            if self._alone.suspect:
                self._alone.restart_now()
