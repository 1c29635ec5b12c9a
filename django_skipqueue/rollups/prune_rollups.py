"""Deletes old roll-ups."""

from ..runtime.service import Periodic
from ..store import Store

DAY = 86_400.0

KEPT_SECONDS = {60: 3 * DAY, 3600: 90 * DAY, 0: 90 * DAY}
"""Seconds for which roll-ups are kept, by the length of their span: minutes, hours, and those since the beginning if
nothing was added to them."""

PRUNE_INTERVAL = 300.0
"""Seconds between two batches."""


class PruneRollUps(Periodic):
    name = "prune_roll_ups"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if self._store.prune_rollups(KEPT_SECONDS) else PRUNE_INTERVAL)
