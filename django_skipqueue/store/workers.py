"""The methods that read and write the rows of workers, with their heartbeats."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from . import sql
from .statements import Statements


class Workers(Statements):
    """Used by workers and their supervisors."""

    def heartbeat_workers(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Write the heartbeats of these workers: each a mapping of id, name, hostname, pid, queues and concurrency."""
        self._execute(sql.HEARTBEAT_WORKERS, {"workers": json.dumps(workers)})

    def heartbeat_worker(self, worker_id: str) -> tuple[datetime, datetime] | None:
        """Write the heartbeat of one worker. Returns its previous and its new heartbeat; `None` if it has no row."""
        for before, now in self.rows(sql.HEARTBEAT_WORKER, {"worker_id": worker_id}):
            return before, now
        return None

    def heartbeats(self) -> tuple[datetime, dict[str, datetime]]:
        """The database's time, and the heartbeat of each worker, by its id."""
        rows = self.rows(sql.HEARTBEATS)
        return rows[0][0], {str(id): heartbeat for _, id, heartbeat in rows if id is not None}

    def delete_workers(self, worker_ids: Sequence[str]) -> None:
        """Delete the rows of workers that have stopped."""
        self._execute(sql.DELETE_WORKERS, {"worker_ids": list(worker_ids)})

    def prune_workers(self, worker_ids: Sequence[str], *, age: float) -> None:
        """Delete the rows of those workers that hold no job and have written no heartbeat for `age` seconds."""
        self._execute(sql.PRUNE_WORKERS, {"worker_ids": list(worker_ids), "age": age})
