"""The methods that read and write the rows of workers, with their heartbeats."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..values.worker_requests import Request
from . import sql
from .notify import WORKERS_PAYLOAD, notify_supervisors
from .statements import Statements


class Workers(Statements):
    """Used by workers and their supervisors."""

    def heartbeat_workers(self, workers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Write the heartbeats of these workers. Returns what operators have requested of them, by id.

        Each is a mapping of its columns, if known. That of a carrier has `is_carrier`: its row stays, with the queues
        and the concurrency of the last call. `is_reached` and `newly_refused`: what its relay has seen since that.
        """
        rows = self.rows(sql.HEARTBEAT_WORKERS, {"workers": json.dumps(workers)})
        return {id: requested for id, requested in rows if requested}

    def heartbeat_worker(self, worker_id: str) -> tuple[datetime, datetime, str] | None:
        """Write the heartbeat of one worker. Returns its previous and its new heartbeat, and what is requested of it.

        Returns `None` if the worker has no row.
        """
        for before, now, requested in self.rows(sql.HEARTBEAT_WORKER, {"worker_id": worker_id}):
            return before, now, requested
        return None

    def request_of_worker(self, worker_id: str, request: Request) -> bool:
        """Have the supervisor of a worker restart it, or stop. Returns whether the worker has a row.

        The supervisor is notified after the commit. Without notifications its next heartbeat finds the request.
        """
        rows = self.rows(sql.REQUEST_OF_WORKER, {"worker_id": worker_id, "request": request})
        if rows:
            notify_supervisors(self, WORKERS_PAYLOAD)
        return bool(rows)

    def heartbeats(self) -> tuple[datetime, dict[str, datetime]]:
        """The database's time, and the heartbeat of each worker, by its id. Carriers are not among them."""
        rows = self.rows(sql.HEARTBEATS)
        return rows[0][0], {str(id): heartbeat for _, id, heartbeat in rows if id is not None}

    def delete_workers(self, worker_ids: Sequence[str]) -> None:
        self.execute(sql.DELETE_WORKERS, {"worker_ids": list(worker_ids)})

    def prune_workers(self, worker_ids: Sequence[str], *, age: float) -> None:
        """Delete the rows of those workers that hold no job and have written no heartbeat for `age` seconds."""
        self.execute(sql.PRUNE_WORKERS, {"worker_ids": list(worker_ids), "age": age})
