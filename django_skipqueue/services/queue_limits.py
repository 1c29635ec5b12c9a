"""Has queued jobs wait again after the limit or the rate of their queue was lowered or set.

Invariant: a job that runs is left alone, and no other is admitted until the queue is below its limit.
"""

from collections.abc import Collection

from ..runtime.service import Periodic
from ..store import Store
from ..store.notify import QUEUES_PAYLOAD

SURPLUS_SECONDS = 10.0
"""Seconds between two looks. A notification announces each change of a limit, and nothing else makes a surplus."""


class BlockSurplus(Periodic):
    """Looks at the queues whose limits or rates were changed, and has one batch of each kind wait."""

    name = "block_surplus"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        blocked = self._store.block_surplus() + self._store.block_unrated()
        self.run_again_in(0.0 if blocked else SURPLUS_SECONDS)

    def notified(self, payloads: Collection[str]) -> None:
        """Look at once, because a limit may have changed. After an error, the delay is not shortened."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self.due_at = 0.0
