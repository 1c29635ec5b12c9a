"""Ends the database sessions that dead workers have left behind."""

from collections.abc import Sequence

from ..events import liveness_logs
from ..store import Store


class DeadSessions:
    """Logs the sessions that it ends, and once those that this role may not end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left = 0

    def end(self, worker_ids: Sequence[str]) -> None:
        ended, left = self._store.end_sessions(worker_ids)
        if ended:
            liveness_logs.sessions_ended(self._store.alias, ended)
        if left > self._left:
            liveness_logs.sessions_left(self._store.alias, left)
        self._left = left
