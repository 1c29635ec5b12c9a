"""The verbs for worker rows: who is alive, and since when."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections, models
from django.db.models.functions import Now

from ..conf import settings
from . import sql

if TYPE_CHECKING:
    from ..models import Worker  # noqa: F401 (the type that the managers are of)


class WorkerQuerySet(models.QuerySet["Worker"]):
    """The verbs for worker rows."""

    def live(self, *, worker_timeout: float | None = None) -> "WorkerQuerySet":
        """Workers heard of within `worker_timeout` seconds (default: the setting), by the database's clock."""
        within = timedelta(seconds=settings.worker_timeout if worker_timeout is None else worker_timeout)
        return self.filter(heartbeat_at__gt=Now() - within)

    def beat(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Say that these workers are alive: each a mapping of id, name, hostname, pid, queues and concurrency."""
        self._execute(sql.HEARTBEAT_WORKERS, {"workers": json.dumps(workers)})

    def heartbeat_own(self, worker_id: str) -> tuple[datetime, datetime] | None:
        """Say that this one worker is alive; its heartbeat before that and now, or `None` where it has no row."""
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql.HEARTBEAT_WORKER, {"worker_id": worker_id})
            found: tuple[datetime, datetime] | None = cursor.fetchone()
            return found

    def heartbeats(self) -> tuple[datetime, dict[str, datetime]]:
        """The database's time, and the heartbeat of each worker, by its id."""
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql.HEARTBEATS)
            rows = cursor.fetchall()
        return rows[0][0], {str(id): heartbeat for _, id, heartbeat in rows if id is not None}

    def deregister(self, worker_ids: Sequence[str]) -> None:
        """Remove workers that have stopped."""
        self._execute(sql.DELETE_WORKERS, {"worker_ids": list(worker_ids)})

    def forget(self, worker_ids: Sequence[str], *, age: float) -> None:
        """Remove those of these workers that were not heard of for `age` seconds and hold no job any more."""
        self._execute(sql.PRUNE_WORKERS, {"worker_ids": list(worker_ids), "age": age})

    def _execute(self, statement: str, values: Mapping[str, Any]) -> None:
        with connections[self.db].cursor() as cursor:
            cursor.execute(statement, values)


_Verbs = models.Manager.from_queryset(WorkerQuerySet)


class WorkerManager(_Verbs["Worker"]):
    """`Worker.objects`: the processes that run jobs, in the queue's database."""

    def get_queryset(self) -> WorkerQuerySet:
        """All workers, in the queue's database."""
        return WorkerQuerySet(self.model, using=self._db or settings.database)
