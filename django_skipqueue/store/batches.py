"""The methods that make batches, and finish them.

A batch is finished in one transaction, which locks its row, checks once more that no job of it is left, and inserts the
jobs of its callbacks. So each callback is enqueued exactly once, whoever looks, and whatever dies.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction

from ..conf import settings
from ..events.events import BatchesFinished
from ..values.batches import FinishedBatch
from ..values.callbacks import loaded
from . import policy_sql as sql
from .enqueue import Enqueueing
from .parameters import as_array
from .statements import BATCH

FEW = 100
"""Batches that are finished in one transaction."""


class NewBatch(NamedTuple):
    """The columns that the database has set in an inserted batch."""

    id: int
    created_at: datetime


class Looked(NamedTuple):
    """What a look at some batches has come to."""

    finished: int
    missed: bool
    """Whether a batch is done that somebody else has locked: to finish it, or to add jobs."""


class Batches(Enqueueing):
    """Used by `Batch`, by workers after a settle, and by supervisors."""

    def insert_batch(self, *, name: str, parent_id: int | None, callbacks: Mapping[str, Any]) -> NewBatch:
        """Insert a batch. Nobody finishes it before the caller's transaction ends."""
        values = {"name": name, "parent_id": parent_id, "callbacks": json.dumps(callbacks)}
        [row] = self.rows(sql.INSERT_BATCH, values)
        return NewBatch._make(row)

    def join_batch(self, batch_id: int) -> bool:
        """Keep an open batch from being finished until the caller's transaction ends. Returns whether it is open."""
        return bool(self.rows(sql.JOIN_BATCH, {"id": batch_id}))

    def open_batches(self, *, after: int = 0, limit: int = BATCH) -> list[int]:
        """The ids of the next open batches after an id, in their order."""
        return [id for (id,) in self.rows(sql.OPEN_BATCHES, {"after": after, "limit": limit})]

    def finish_batches(self, ids: Iterable[int | None], *, outside: bool = True) -> Looked:
        """Finish those of these batches, and of the batches `outside` of them, whose jobs are finished.

        Returns how many were finished, and whether one was missed: somebody else has locked it.
        """
        number, missed = 0, False
        left: Collection[int | None] = set(ids)
        while left:
            done = [id for (id,) in self.rows(sql.DONE_BATCHES, {"ids": as_array(left)})]
            left = set()
            for first in range(0, len(done), FEW):
                chunk = sorted(done)[first : first + FEW]
                finished = self._finish(chunk)
                missed = missed or len(finished) < len(chunk)
                number += len(finished)
                if outside:
                    left |= {batch.parent_id for batch in finished if batch.parent_id is not None}
        return Looked(number, missed)

    def finish_open_batches(self, *, after: int = 0, limit: int = BATCH) -> int | None:
        """Look at the next open batches after an id. Returns the last id; `None` if there are no more."""
        ids = self.open_batches(after=after, limit=limit)
        if ids:
            self.finish_batches(ids)
        return ids[-1] if len(ids) == limit else None

    def finish_all_batches(self) -> int:
        """Finish all batches that are done, for a drain: their callbacks are jobs. Returns how many."""
        number, ids = 0, self.open_batches()
        while ids:
            number += self.finish_batches(ids).finished
            ids = self.open_batches(after=ids[-1])
        return number

    def progress(self, ids: Collection[int], *, most: int | None = None) -> dict[int, dict[str, int]]:
        """For each of these batches the number of its jobs, those of inner batches among them, by status.

        most: the number of jobs that are counted at most, in one batch and one status.
        """
        found: dict[int, dict[str, int]] = {id: {} for id in ids}
        for id, status, jobs in self.rows(sql.PROGRESS, {"ids": as_array(ids), "most": most}):
            found[id][status] = jobs
        return found

    def prune_batches(self, *, limit: int = BATCH) -> int:
        """Delete finished batches past their retention, which is that of jobs. Returns how many."""
        kept = {status: settings.retention_of(status) for status in ("completed", "failed")}
        [(deleted,)] = self.rows(sql.PRUNE_BATCHES, {**kept, "limit": limit})
        return int(deleted)

    def jobs_ended(self, batch_ids: Collection[int], job_ids: Collection[int]) -> None:
        """After the caller's commit, admit what waited for these jobs, and finish these batches if they are done.

        A supervisor repeats it after an error.
        """
        transaction.on_commit(lambda: self._look_quietly(batch_ids, job_ids), using=self.alias, robust=True)

    def _look_quietly(self, batch_ids: Collection[int], job_ids: Collection[int]) -> None:
        with suppress(DatabaseError):
            self.admit_dependants(job_ids)
            self.finish_batches(batch_ids)

    def _finish(self, ids: list[int]) -> list[FinishedBatch]:
        """Finish those of these batches that nobody else has locked, and that are still done."""
        with transaction.atomic(using=self.alias):
            locked = [id for (id,) in self.rows(sql.LOCK_BATCHES, {"ids": as_array(ids)})]
            rows = self.rows(sql.FINISH_BATCHES, {"ids": as_array(locked)}) if locked else []
            finished = [FinishedBatch._make(row) for row in sorted(rows)]
            for batch in finished:
                self._call_back(batch)
        if finished:
            self.send(BatchesFinished(self.alias, finished))
        return finished

    def _call_back(self, batch: FinishedBatch) -> None:
        """Enqueue the callbacks. Each belongs to the batch, and so finds it; the batch has been finished before."""
        callbacks = json.loads(batch.callbacks)
        names = ("on_failure" if batch.is_failure else "on_success", "on_finish")
        callback_ids = []
        for name in names:
            if name in callbacks:
                spec, call = loaded(callbacks[name])
                inserted = self.enqueue(spec._replace(batch_id=batch.id), call)
                callback_ids += [inserted.id] if inserted else []
        if callback_ids:
            self.execute(sql.NOTE_CALLBACKS, {"id": batch.id, "callback_ids": callback_ids})
