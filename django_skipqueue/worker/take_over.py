"""Takes over the one job of a process that runs a suspect alone."""

from collections.abc import Callable

from ..runtime.service import Periodic
from ..store import Store
from ..values.records import ClaimedJob, LeaseRef
from ..values.times import NEVER


class TakeOver(Periodic):
    """Runs once, after the worker's row is written: from then on its heartbeat counts for the job."""

    name = "take_over"

    def __init__(
        self,
        store: Store,
        suspect: LeaseRef,
        worker_id: str,
        *,
        taken: Callable[[ClaimedJob], object],
        gone: Callable[[], object],
    ) -> None:
        """`gone` is called if the lease has ended: the other worker was too quick, or somebody cancelled the job."""
        self._store = store
        self._suspect = suspect
        self._worker_id = worker_id
        self._taken = taken
        self._gone = gone

    def run(self, now: float) -> None:
        job = self._store.take_over(self._suspect, worker_id=self._worker_id)
        self.due_at = NEVER
        if job is None:
            self._gone()
        else:
            self._taken(job)
