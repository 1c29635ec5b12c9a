"""Counts the enqueued jobs.

The caller of `.defer()` counts nothing: a row that all callers change would make them wait for each other. A supervisor
reads the new rows of the job table instead, by their ids.
"""

from ..runtime.service import Periodic
from ..store import Store

COUNT_INTERVAL = 10.0
"""Seconds between two counts, over all supervisors. A job is counted two to three intervals after its commit."""


class CountEnqueued(Periodic):
    name = "count_enqueued"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_started = False

    def run(self, now: float) -> None:
        """Count one batch, unless another supervisor has."""
        if not self._has_started:
            self._store.start_counting()
            self._has_started = True
        has_more = self._store.count_enqueued(interval=COUNT_INTERVAL - 1.0)
        self.run_again_in(0.0 if has_more else COUNT_INTERVAL)
